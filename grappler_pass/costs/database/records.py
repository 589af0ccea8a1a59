"""The rows of the cost database, and which of two is the better.

A row is kept, and carried to another machine, as one JSON object on a line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

from grappler_pass.costs.database.columns import checked
from grappler_pass.costs.database.price_list import Measured, Sample

# A spread below this is luck: machines repeat themselves no better.
_LEAST_SPREAD = 0.02


# What no two rows have in common: the device, TensorFlow, and kind with subject.
Identity = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class CostRow:
    """What was measured, on which device, with which TensorFlow."""

    device: str
    tensorflow: str
    measured: Measured

    @property
    def identity(self) -> Identity:
        """What no other row has."""
        subject = f"cost {self.measured.probe.key} {self.measured.dtype}"
        return (self.device, self.tensorflow, subject)

    @property
    def rank(self) -> tuple[float, ...]:
        """Greater in the better supported of two."""
        return _support(self.measured.sample)


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a comparison of a graph with the rewritten one ended, on which device.

    Attributes:
        fingerprint: of the graph.
        faster: whether the rewritten graph was.
        seconds_before: that a step took before the rewrite.
        seconds_after: that one took after it.
        when: seconds since 1970.
    """

    device: str
    tensorflow: str
    fingerprint: str
    faster: bool
    seconds_before: float
    seconds_after: float
    when: float

    @property
    def identity(self) -> Identity:
        """What no other row has."""
        return (self.device, self.tensorflow, f"verdict {self.fingerprint}")

    @property
    def rank(self) -> tuple[float, ...]:
        """Greater in the later of two; of equally old ones in the more careful."""
        return (self.when, not self.faster, self.seconds_after, self.seconds_before)


@dataclass(frozen=True, slots=True)
class Spending:
    """What finding out about a graph has taken so far, in all processes together."""

    device: str
    tensorflow: str
    fingerprint: str
    spent_seconds: float

    @property
    def identity(self) -> Identity:
        """What no other row has."""
        return (self.device, self.tensorflow, f"spending {self.fingerprint}")

    @property
    def rank(self) -> tuple[float, ...]:
        """Greater in the larger of two."""
        return (self.spent_seconds,)


Row = CostRow | Verdict | Spending
_R = TypeVar("_R", bound=Row)

_FIGURES = tuple(field.name for field in fields(Sample))
_COST_COLUMNS = ("device", "tensorflow", "probe", "dtype", *_FIGURES)


def text_from_row(row: Row) -> str:
    """Return a row as one line of JSON."""
    if not isinstance(row, CostRow):
        return json.dumps(asdict(row))
    it = row.measured
    values = (row.device, row.tensorflow, it.probe.key, it.dtype)
    figures = (getattr(it.sample, name) for name in _FIGURES)
    return json.dumps(dict(zip(_COST_COLUMNS, (*values, *figures), strict=True)))


def row_from_text(text: str) -> Row:
    """Return what `text_from_row` wrote.

    Raises:
        ValueError: it is something else, or a value is not to be believed.
    """
    try:
        plain = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"not JSON: {text!r:.40}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"not a row: {text!r:.40}")
    if "fingerprint" in plain:
        kind = Spending if "spent_seconds" in plain else Verdict
        return kind(**checked(plain, [field.name for field in fields(kind)]))
    values = checked(plain, _COST_COLUMNS)
    sample = Sample(**{name: values.pop(name) for name in _FIGURES})
    device, tensorflow, probe, dtype = values.values()
    return CostRow(device, tensorflow, Measured(probe, dtype, sample))


def flaw_of(row: Row) -> str | None:
    """Return why a row is not acceptable; None where it is."""
    try:
        row_from_text(text_from_row(row))
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def better(known: _R | None, row: _R) -> _R:
    """Return which of two rows of one identity is to be kept, the known one if equal.

    What else is equal is decided by the figures, so that the order never matters.
    """
    return row if known is None else max(known, row, key=lambda each: each.rank)


def best_rows(rows: Iterable[_R]) -> tuple[_R, ...]:
    """Return the best row of each identity."""
    best: dict[Identity, _R] = {}
    for row in rows:
        best[row.identity] = better(best.get(row.identity), row)
    return tuple(best.values())


def better_supported(one: Sample, other: Sample) -> Sample:
    """Return the figure to keep of two for the same probe and dtype.

    The smaller standard error, spread / sqrt(count), wins; of equal ones the newer.
    """
    return max(one, other, key=_support)


def _support(sample: Sample) -> tuple[float, ...]:
    error = max(sample.spread, _LEAST_SPREAD) / math.sqrt(sample.count)
    figures = (sample.seconds, sample.cold_seconds, sample.spread)
    return (-error, sample.when, sample.count, *(-figure for figure in figures))
