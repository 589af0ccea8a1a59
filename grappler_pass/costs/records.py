"""The rows of the cost database, and which of two is the better."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grappler_pass.costs.columns import (
    read_count,
    read_dtype,
    read_name,
    read_number,
    read_probe,
    read_time,
)
from grappler_pass.costs.price_list import Measured, Sample

COST_COLUMNS = (
    "device",
    "tensorflow",
    "probe",
    "dtype",
    "seconds",
    "cold_seconds",
    "spread",
    "count",
    "when",
)
VERDICT_COLUMNS = (
    "device",
    "tensorflow",
    "fingerprint",
    "faster",
    "seconds_before",
    "seconds_after",
    "when",
)
SPENDING_COLUMNS = ("device", "tensorflow", "fingerprint", "seconds")

# A spread below this is luck: machines repeat themselves no better.
_LEAST_SPREAD = 0.02
# Nobody measures for longer, nor does any op scatter so wildly; beyond, prices would
# leave the numbers that a computer has.
_MOST_SECONDS = 1e5
_MOST_SPREAD = 10.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a comparison of two graphs ended.

    Attributes:
        faster: whether the rewritten graph was.
        seconds_before: that a step took before the rewrite.
        seconds_after: that one took after it.
        when: seconds since 1970.
    """

    faster: bool
    seconds_before: float
    seconds_after: float
    when: float


@dataclass(frozen=True, slots=True)
class CostRow:
    """What was measured, on which device, with which TensorFlow."""

    device: str
    tensorflow: str
    measured: Measured

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What no two rows have in common."""
        key = self.measured.probe.key
        return (self.device, self.tensorflow, key, self.measured.dtype)

    @property
    def columns(self) -> tuple[str | float, ...]:
        """The values of COST_COLUMNS."""
        it = self.measured.sample
        seconds = (float(it.seconds), float(it.cold_seconds))
        # Whoever measures may count in NumPy's types.
        rest = (float(it.spread), int(it.count), float(it.when))
        return (*self.identity, *seconds, *rest)

    def merged(self, other: CostRow) -> CostRow:
        """Return which of two rows of one identity is to be kept."""
        sample = better_supported(self.measured.sample, other.measured.sample)
        return self if sample is self.measured.sample else other

    @classmethod
    def from_columns(cls, columns: Mapping[str, object]) -> CostRow:
        """Make a row of values by column.

        Raises:
            ValueError: one is missing, of a wrong type or out of range.
        """
        sample = Sample(
            seconds=_read_seconds(columns, "seconds"),
            cold_seconds=_read_seconds(columns, "cold_seconds"),
            spread=read_number(columns, "spread", most=_MOST_SPREAD),
            count=read_count(columns),
            when=read_time(columns),
        )
        measured = Measured(read_probe(columns), read_dtype(columns), sample)
        return cls(*_origin(columns), measured)


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """The verdict on a graph, by fingerprint, on one device."""

    device: str
    tensorflow: str
    fingerprint: str
    verdict: Verdict

    @property
    def identity(self) -> tuple[str, str, str]:
        """What no two rows have in common."""
        return (self.device, self.tensorflow, self.fingerprint)

    @property
    def columns(self) -> tuple[str | float | bool, ...]:
        """The values of VERDICT_COLUMNS."""
        it = self.verdict
        seconds = (float(it.seconds_before), float(it.seconds_after))
        return (*self.identity, bool(it.faster), *seconds, float(it.when))

    def merged(self, other: VerdictRow) -> VerdictRow:
        """Return which of two rows of one identity is to be kept."""
        verdict = newer(self.verdict, other.verdict)
        return self if verdict is self.verdict else other

    @classmethod
    def from_columns(cls, columns: Mapping[str, object]) -> VerdictRow:
        """Make a row of values by column.

        Raises:
            ValueError: one is missing, of a wrong type or out of range.
        """
        faster = columns.get("faster")
        # SQLite has no truth values, so 0 and 1 stand for them.
        if faster not in (False, True):
            raise ValueError(f"faster: received {faster!r}; allowed are true and false")
        verdict = Verdict(
            faster=bool(faster),
            seconds_before=_read_seconds(columns, "seconds_before"),
            seconds_after=_read_seconds(columns, "seconds_after"),
            when=read_time(columns),
        )
        return cls(*_origin(columns), read_name(columns, "fingerprint"), verdict)


@dataclass(frozen=True, slots=True)
class SpendingRow:
    """What finding out about a graph, by fingerprint, has taken so far.

    Attributes:
        seconds: of all processes together.
    """

    device: str
    tensorflow: str
    fingerprint: str
    seconds: float

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """What no two rows of any kind have in common."""
        return (self.device, self.tensorflow, self.fingerprint, "spending")

    @property
    def columns(self) -> tuple[str | float, ...]:
        """The values of SPENDING_COLUMNS."""
        return (*self.identity[:3], float(self.seconds))

    def merged(self, other: SpendingRow) -> SpendingRow:
        """Return which of two rows of one identity is to be kept."""
        return max(self, other, key=lambda row: row.seconds)

    @classmethod
    def from_columns(cls, columns: Mapping[str, object]) -> SpendingRow:
        """Make a row of values by column.

        Raises:
            ValueError: one is missing, of a wrong type or out of range.
        """
        fingerprint = read_name(columns, "fingerprint")
        return cls(*_origin(columns), fingerprint, read_number(columns, "seconds"))


AnyRow = CostRow | VerdictRow | SpendingRow
_COLUMNS: Mapping[type[AnyRow], tuple[str, ...]] = {
    CostRow: COST_COLUMNS,
    VerdictRow: VERDICT_COLUMNS,
    SpendingRow: SPENDING_COLUMNS,
}


def flaw_of(row: AnyRow) -> str | None:
    """Return why a row is not acceptable; None where it is."""
    try:
        type(row).from_columns(dict(zip(_COLUMNS[type(row)], row.columns, strict=True)))
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def better_supported(one: Sample, other: Sample) -> Sample:
    """Return the figure to keep of two for the same probe and dtype.

    The smaller standard error, spread / sqrt(count), wins; of equal ones the newer.
    What remains equal is decided by the figures, so that the order never matters.
    """
    return max(one, other, key=_support)


def newer(one: Verdict, other: Verdict) -> Verdict:
    """Return the later of two verdicts; of equally old ones the more careful."""
    return max(one, other, key=_careful)


def _careful(verdict: Verdict) -> tuple[float, ...]:
    seconds = (verdict.seconds_after, verdict.seconds_before)
    return (verdict.when, not verdict.faster, *seconds)


def _support(sample: Sample) -> tuple[float, ...]:
    error = max(sample.spread, _LEAST_SPREAD) / math.sqrt(sample.count)
    figures = (sample.seconds, sample.cold_seconds, sample.spread)
    return (-error, sample.when, sample.count, *(-figure for figure in figures))


def _read_seconds(columns: Mapping[str, object], name: str) -> float:
    return read_number(columns, name, above=0.0, most=_MOST_SECONDS)


def _origin(columns: Mapping[str, object]) -> tuple[str, str]:
    """Return the device and the TensorFlow of a row."""
    return read_name(columns, "device"), read_name(columns, "tensorflow")
