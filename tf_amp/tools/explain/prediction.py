"""A graph's predicted times next to its measured ones, in float32 and mixed.

It is made by `predicting`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from grappler_pass.planning.plan import Plan
from tf_amp.report.codec import Stored
from tf_amp.report.display import Display, bare_table, filled, plain_text

_MILLI = 1e3
_TIMES = tuple(
    f"{dtype} {name}"
    for dtype in ("f32", "mixed")
    for name in ("predicted ms", "measured ms", "ratio")
)
_MISSES = 5


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds per step of the same work, as predicted and as measured."""

    predicted_seconds: float
    measured_seconds: float

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None where nothing was measured."""
        if self.measured_seconds <= 0.0:
            return None
        return self.predicted_seconds / self.measured_seconds

    @property
    def miss_seconds(self) -> float:
        """How far apart they are."""
        return abs(self.predicted_seconds - self.measured_seconds)


@dataclasses.dataclass(frozen=True)
class OpTimes:
    """All nodes of one op.

    Attributes:
      op: its name; `ADDED_CASTS` for what the plan inserts.
      nodes: how many there are.
      float32: in the graph as given.
      mixed: in the graph rewritten.
    """

    op: str
    nodes: int
    float32: Times
    mixed: Times

    @property
    def miss_seconds(self) -> float:
        """The larger miss of both graphs."""
        return max(self.float32.miss_seconds, self.mixed.miss_seconds)


ADDED_CASTS = "(added casts)"


@dataclasses.dataclass(frozen=True, repr=False)
class Prediction(Display, Stored):
    """A plan, with the times of the graph it is for.

    The times of ops are taken with one op running at a time, those of the whole step
    as the program runs it; so they need not add up.

    Attributes:
      plan: what was planned.
      float32: the whole step as given.
      mixed: the whole step rewritten; equal to `float32` where the plan is empty.
      ops: by op, the slowest first.
      speedup_error: standard error of the logarithm of the measured speed-up.
      pairs: how often both graphs were run.
    """

    TEXT_WIDTH: ClassVar[int] = 200

    plan: Plan
    float32: Times
    mixed: Times
    ops: tuple[OpTimes, ...]
    speedup_error: float = 0.0
    pairs: int = 0

    @property
    def predicted_speedup(self) -> float:
        """Predicted seconds in float32 over predicted seconds mixed."""
        return _over(self.float32.predicted_seconds, self.mixed.predicted_seconds)

    @property
    def measured_speedup(self) -> float:
        """Measured seconds in float32 over measured seconds mixed."""
        return _over(self.float32.measured_seconds, self.mixed.measured_seconds)

    def misses(self, count: int = _MISSES) -> tuple[OpTimes, ...]:
        """Return the ops whose times were missed by most, the largest miss first."""
        ranked = sorted(self.ops, key=lambda row: -row.miss_seconds)
        return tuple(ranked[:count])

    def top(self, count: int | None) -> Prediction:
        """Return it with its `count` slowest ops and best plan rows; None: with all."""
        return dataclasses.replace(
            self, plan=self.plan.top(count), ops=self.ops[:count]
        )

    def summary(self) -> str:
        """Return one line: whole step in both precisions, and the speed-up."""
        return (
            f"{self.plan.graph or 'graph'}: float32 {_pair(self.float32)}, mixed "
            f"{_pair(self.mixed)}; speed-up {self.predicted_speedup:.2f} predicted, "
            f"{self.measured_speedup:.2f} measured (+-{self.speedup_error:.0%}, "
            f"{self.pairs} runs)"
        )

    def __str__(self) -> str:
        """Print the plan, then predicted next to measured, then the largest misses."""
        parts = [
            str(self.plan),
            "",
            plain_text(self._table(), self.TEXT_WIDTH),
            self.summary(),
        ]
        return "\n".join([*parts, self._largest_misses()])

    def __rich__(self) -> Group:
        """Show in a terminal, the plan folded to its width."""
        last = Text(f"{self.summary()}\n{self._largest_misses()}")
        return Group(self.plan, self._table(), last)

    def _largest_misses(self) -> str:
        misses = ", ".join(
            f"{row.op} {_MILLI * row.miss_seconds:.3g} ms" for row in self.misses()
        )
        return f"largest misses: {misses or 'none'}"

    def _table(self) -> Table:
        titles = ("op", "nodes", *_TIMES)
        return filled(bare_table(), titles, self._rows(), numbers=titles[1:])

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for row in self.ops:
            yield row.op, str(row.nodes), *_cells(row.float32), *_cells(row.mixed)
        yield "whole step", "", *_cells(self.float32), *_cells(self.mixed)


def _cells(times: Times) -> tuple[str, str, str]:
    ratio = times.ratio
    return (
        f"{_MILLI * times.predicted_seconds:.3f}",
        f"{_MILLI * times.measured_seconds:.3f}",
        "-" if ratio is None else f"{ratio:.2f}",
    )


def _pair(times: Times) -> str:
    return (
        f"{_MILLI * times.predicted_seconds:.3g} ms predicted, "
        f"{_MILLI * times.measured_seconds:.3g} measured"
    )


def _over(before: float, after: float) -> float:
    return before / after if after > 0.0 else 1.0
