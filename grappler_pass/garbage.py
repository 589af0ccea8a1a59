"""When Python may look for garbage."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from grappler_pass.fork_safety import per_process, renewed_lock


class _Thread(threading.local):
    """How many pauses a thread is in; one within the other counts, too."""

    depth: int = 0


_thread = _Thread()
_lock = renewed_lock()
_pausing_threads = 0
_was_enabled = False


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Allocate without the collector walking all of TensorFlow's objects again.

    Reading and rewriting a graph makes many small objects and no cycles; collections in
    between are more than half of the time. One takes 0.2 s in a process that has
    imported TensorFlow and Keras. What waits or runs meanwhile is `collection_allowed`.
    Threads may be here at once: the last one to leave has it enabled again.
    """
    _set_depth(_thread.depth + 1)
    try:
        yield
    finally:
        _set_depth(_thread.depth - 1)


@contextlib.contextmanager
def collection_allowed() -> Iterator[None]:
    """End the pauses of this thread for a while, however many it is in."""
    depth = _thread.depth
    _set_depth(0)
    try:
        yield
    finally:
        _set_depth(depth)


def _set_depth(depth: int) -> None:
    """Let this thread be in so many pauses; the first and the last thread count."""
    global _pausing_threads, _was_enabled
    before, _thread.depth = _thread.depth, depth
    with _lock:
        if depth and not before:
            if not _pausing_threads:
                _was_enabled = gc.isenabled()
                gc.disable()
            _pausing_threads += 1
        elif before and not depth:
            _pausing_threads -= 1
            if not _pausing_threads and _was_enabled:
                gc.enable()


@per_process
def _forget_other_threads() -> None:
    """Count only the thread that has forked: no other is there in the child."""
    global _pausing_threads
    is_paused = _pausing_threads > 0
    _pausing_threads = int(_thread.depth > 0)
    if is_paused and not _pausing_threads and _was_enabled:
        gc.enable()
