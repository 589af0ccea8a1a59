"""What this package does for itself, and what is decided already, is let pass."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Thread(threading.local):
    leaves_graphs_alone: bool = False
    takes_all: bool = False


_thread = _Thread()


def leaves_graphs_alone() -> bool:
    """Return whether this thread is within `leaving_graphs_alone`."""
    return _thread.leaves_graphs_alone


@contextlib.contextmanager
def leaving_graphs_alone() -> Iterator[None]:
    """Pass graphs through that this thread optimizes; not to be nested."""
    _thread.leaves_graphs_alone = True
    try:
        yield
    finally:
        _thread.leaves_graphs_alone = False


def takes_all() -> bool:
    """Return whether the running code is not to be asked for overflows."""
    return _thread.takes_all


@contextlib.contextmanager
def taking_all() -> Iterator[None]:
    """Let every step inside be taken, and whatever is assigned be assigned."""
    before, _thread.takes_all = _thread.takes_all, True
    try:
        yield
    finally:
        _thread.takes_all = before
