"""Graphs that pass as they are because this package runs them for itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Thread(threading.local):
    leaves_graphs_alone: bool = False


_thread = _Thread()


def leaves_graphs_alone() -> bool:
    """Tell whether this thread is within `leaving_graphs_alone`."""
    return _thread.leaves_graphs_alone


@contextlib.contextmanager
def leaving_graphs_alone() -> Iterator[None]:
    """Pass graphs through that this thread optimizes; not to be nested."""
    _thread.leaves_graphs_alone = True
    try:
        yield
    finally:
        _thread.leaves_graphs_alone = False
