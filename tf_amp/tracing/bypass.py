"""What this package does for itself, and what is decided already, is let pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")

_leaves_graphs_alone = ContextVar("tf_amp_leaves_graphs_alone", default=False)
_takes_all = ContextVar("tf_amp_takes_all", default=False)


@contextlib.contextmanager
def holding(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Let a variable of the running thread, or task, have a value inside."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def leaves_graphs_alone() -> bool:
    """Return whether this thread is within `leaving_graphs_alone`."""
    return _leaves_graphs_alone.get()


def leaving_graphs_alone() -> AbstractContextManager[None]:
    """Pass graphs through that this thread optimizes."""
    return holding(_leaves_graphs_alone, True)


def takes_all() -> bool:
    """Return whether the running code is not to be asked for overflows."""
    return _takes_all.get()


def taking_all() -> AbstractContextManager[None]:
    """Let every step inside be taken, and whatever is assigned be assigned."""
    return holding(_takes_all, True)
