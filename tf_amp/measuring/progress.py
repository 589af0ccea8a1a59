"""Who receives the progress of measuring; needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from grappler_pass.costs.database.price_list import Measured


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
