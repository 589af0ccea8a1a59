"""How far work has come that takes long, for whoever listens; needs no TensorFlow.

Tools `report` what they do; by default there is no listener.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import TypeVar

_T = TypeVar("_T")
# What is being done; how much of it is, and how much there is in all, where known.
Listener = Callable[[str, int, int | None], None]

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


def report(what: str, done: int = 0, total: int | None = None) -> None:
    """Say what is being done, how much of it is, and of how much if that is known."""
    for listener in _listeners.get():
        listener(what, done, total)


def each(items: Iterable[_T], what: str) -> Iterator[_T]:
    """Yield items, and report before each how many are done."""
    total = len(items) if isinstance(items, Sized) else None
    for done, item in enumerate(items):
        report(what, done, total)
        yield item


@contextlib.contextmanager
def listened_to(listener: Listener) -> Iterator[None]:
    """Report to a listener while the context lasts."""
    before = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(before)
