"""Let threads that compile give way to those of the program, where Linux can do that.

Threads that a thread starts inherit its priority, and none can raise it again. They
inherit its name, too. What has another one runs what is compiled, and keeps its
priority.

A process that ends while XLA compiles beside it crashes: what XLA uses is gone by then.
Nothing can interrupt XLA, so such a process ends a little later.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import pathlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from tf_amp.message_codes import Code

# Linux gives such a thread a sixth of a core that another one wants for itself, so that
# steps on two cores take a twelfth longer. With the lowest priority, 19, it is a
# hundredth: then XLA is never done where all cores are busy.
_NICENESS = 7
_THREADS = pathlib.Path("/proc/self/task")
# Names of TensorFlow's threads that have XLA compile, among others, and of ours.
_OURS = "tf_amp_xla"
_COMPILING = ("tf_Compute", _OURS)
# Nothing compiles where no thread does in so many looks, with so many seconds between.
_LOOKS, _BETWEEN = 5, 0.01
# A longer wait, in seconds, is explained.
_SILENCE = 2.0
_ends = threading.Event()


def give_way(thread: int) -> None:
    """Give a thread, by its native number, a lower priority than this one has."""
    # Elsewhere the number may be that of another process.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, thread, own + _NICENESS)


@contextlib.contextmanager
def new_compilers_give_way() -> Iterator[None]:
    """Give the threads that TensorFlow starts inside to compile a low priority."""
    _outlive_compilers()
    before = _compilers()
    yield
    for thread in _compilers() - before:
        give_way(thread)


def become_compiler(start_xla: Callable[[], None]) -> None:
    """Let this thread give way, and those that XLA starts on it to compile."""
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        (_THREADS / str(thread) / "comm").write_text(_OURS)
    with new_compilers_give_way():
        start_xla()
    give_way(thread)


def compiling_thread(work: Callable[[], None]) -> threading.Thread:
    """Start a thread that may have XLA compile, and return it."""
    _outlive_compilers()
    thread = threading.Thread(target=work, name=_OURS, daemon=True)
    thread.start()
    return thread


def process_ends() -> bool:
    """Return whether this process is about to end, so that nothing begins."""
    return _ends.is_set()


@functools.cache
def _outlive_compilers() -> None:
    """Have this process end only after XLA is done with what it has begun."""
    atexit.register(_await_compilers)


def _await_compilers() -> None:
    _ends.set()
    begin, looks, is_said = time.monotonic(), 0, False
    while looks < _LOOKS:
        looks = 0 if is_compiling() else looks + 1
        if time.monotonic() - begin > _SILENCE and not is_said:
            is_said = True
            Code.COMPILED.warn(
                "this process ends once XLA has compiled what it has begun, which "
                "cannot be interrupted"
            )
        time.sleep(_BETWEEN)


def is_compiling() -> bool:
    """Return whether a thread that has given way runs, or has yet to."""
    if any(thread.name == _OURS for thread in threading.enumerate()):
        return True
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for thread in _compilers():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            state = (_THREADS / str(thread) / "stat").read_text().rpartition(") ")[2]
            gives_way = os.getpriority(os.PRIO_PROCESS, thread) > own
            if gives_way and state.startswith(("R", "D")):
                return True
    return False


def _compilers() -> set[int]:
    found = set()
    with contextlib.suppress(OSError):
        for folder in _THREADS.iterdir():
            # A thread may end meanwhile.
            with contextlib.suppress(OSError):
                if (folder / "comm").read_text().strip() in _COMPILING:
                    found.add(int(folder.name))
    return found
