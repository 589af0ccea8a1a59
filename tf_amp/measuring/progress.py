"""How far work has come that takes long, for whoever listens; needs no TensorFlow.

Tools `report` what they do; by default nobody listens. What is measured while a graph
waits for its plan is in notes of its own, since `tf-amp tune` sums them up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from grappler_pass.costs.database.price_list import Measured

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


class Measuring(NamedTuple):
    """How far the prices of one graph are measured.

    Attributes:
      done: ops, of `total`.
      total: ops to measure.
      op: the one just measured; "" at the start.
      rows: its prices.
      is_over: whether no more will be measured for this graph.
    """

    done: int
    total: int
    op: str = ""
    rows: tuple[Measured, ...] = ()
    is_over: bool = False


class Left(NamedTuple):
    """What the plan of one graph hangs on when no more will be measured for it.

    Attributes:
      asked: keys of the probes that its plan hung on.
      missing: those that still have no price, but for what cannot be measured.
      is_broken: whether measuring has failed, rather than run out of time.
    """

    asked: frozenset[str]
    missing: frozenset[str]
    is_broken: bool


class Waiting(NamedTuple):
    """Another process, named for people, measures here, and this one waits."""

    by: str


class Refused(NamedTuple):
    """Nothing is measured for a graph, whatever its plan hangs on, for a reason."""

    why: str


Note = Left | Measuring | Refused | Waiting
Reader = Callable[[Note], None]

# Of the process: a command reads before anything is rewritten, and until it ends.
_readers: list[Reader] = []


def report_to(reader: Reader) -> None:
    """Report from now on what is measured, in the measuring thread.

    What is not measured, and why, is reported on the thread of the graph.
    """
    _readers.append(reader)


def is_read() -> bool:
    """Return whether notes are read, as a look-up for one may take time."""
    return bool(_readers)


def note(it: Note) -> None:
    """Report to every reader."""
    for reader in _readers:
        reader(it)
