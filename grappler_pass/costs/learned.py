"""What a program's own steps have taught about prices: measured over predicted.

A cell is what ops have in common that their price depends on: the classes of their
work, each size of the first of these to a power of two, and the type. A cell's readings
are logarithms of measured over predicted seconds, one of each profiled call. They are
believed where most of several agree, and correct the prices of the cell from then on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from grappler_pass.costs.errors import RUN_TO_RUN
from grappler_pass.costs.work.op_classes import ANY_OP
from grappler_pass.costs.work.piece import Work

# Fewer readings are not believed; of more, the latest count.
FEWEST_READINGS, MOST_READINGS = 3, 9
# Readings agree that are no farther from their median.
AGREEMENT = 0.2
# A record of a kernel is off by about a microsecond: shorter ones are no reading.
LEAST_SECONDS = 1e-5
# No kernel is off by more: what says so was not a reading of it.
MOST_LOG_RATIO = math.log(100.0)


class Expected(NamedTuple):
    """What a profile alone predicts of one execution of a node.

    Attributes:
      cell: that its price belongs to.
      seconds: of one execution.
    """

    cell: str
    seconds: float


class Lesson(NamedTuple):
    """Readings of one cell, the latest last.

    Attributes:
      logs: logarithms of measured over predicted seconds.
    """

    logs: tuple[float, ...] = ()

    @property
    def agreeing(self) -> tuple[float, ...]:
        """The readings near their median: a busy machine may disturb some."""
        middle = statistics.median(self.logs) if self.logs else 0.0
        return tuple(log for log in self.logs if abs(log - middle) <= AGREEMENT)

    @property
    def spread(self) -> float:
        """Standard deviation of those that agree; infinite of fewer than two."""
        return statistics.stdev(self.agreeing) if len(self.agreeing) > 1 else math.inf

    @property
    def is_believed(self) -> bool:
        """Whether several readings agree, and fewer do not."""
        count = len(self.agreeing)
        return count >= FEWEST_READINGS and 2 * count > len(self.logs)

    @property
    def is_over(self) -> bool:
        """Whether more readings are not worth taking: it is believed, or has none.

        What was read and has none is too short for the clock.
        """
        return self.is_believed or not self.logs

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds."""
        return math.exp(statistics.median(self.logs))

    @property
    def error(self) -> float:
        """Standard deviation of the logarithm of a price that it corrects."""
        return math.hypot(self.spread, RUN_TO_RUN)

    def with_readings(self, logs: Iterable[float]) -> Lesson:
        """Return a lesson with further readings."""
        return Lesson((*self.logs, *logs)[-MOST_READINGS:])


class Learned:
    """The lessons of one device; what is added counts for prices from then on.

    Attributes:
      version: counts changes.
    """

    def __init__(self, lessons: Mapping[str, Lesson] | None = None) -> None:
        """Begin with the lessons of earlier processes, by cell."""
        self._lessons = dict(lessons or {})
        self.version = 0

    @property
    def lessons(self) -> Mapping[str, Lesson]:
        """The lessons by cell, believed or not."""
        return MappingProxyType(self._lessons)

    def believed(self, cell: str) -> Lesson | None:
        """Return the lesson of a cell; None where there is none to be believed."""
        lesson = self._lessons.get(cell)
        return lesson if lesson is not None and lesson.is_believed else None

    def add(self, readings: Mapping[str, Sequence[float]]) -> None:
        """Add readings by cell."""
        for cell, logs in readings.items():
            known = self._lessons.get(cell, Lesson())
            self._lessons[cell] = known.with_readings(logs)
        self.version += 1


def cell_of(op: str, works: Sequence[Work], dtype: str, profile: str) -> str:
    """Return the cell of a call of an op whose work a named profile prices."""
    classes = "+".join(work.op_class for work in works)
    if classes == ANY_OP:
        classes = op
    sizes = (2 ** round(math.log2(max(size, 1.0))) for size in works[0].point)
    return f"{classes} {'x'.join(map(str, sizes))} {dtype} ({profile})"


def log_ratio(measured: float, expected: float) -> float | None:
    """Return a reading; None where a time is too short, or not to be believed."""
    if measured < LEAST_SECONDS or expected <= 0.0:
        return None
    log = math.log(measured / expected)
    return log if abs(log) <= MOST_LOG_RATIO else None
