"""The rows of the cost database, and what makes one acceptable or better.

A row may come from a file that somebody else wrote: nothing in it is believed before
its types and ranges are checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from grappler_pass.costs.calls import DTYPE_BYTES, FLOATING
from grappler_pass.costs.price_list import Measured, Sample
from grappler_pass.costs.probes import MEASURED_DTYPE, Constant, Probe

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
VERDICT_COLUMNS = ("device", "tensorflow", "fingerprint", "faster", "ratio", "when")
SPENDING_COLUMNS = ("device", "tensorflow", "fingerprint", "seconds")

# A spread below this is luck: machines repeat themselves no better.
_LEAST_SPREAD = 0.02
_LARGEST_COUNT = 2**53
_LONGEST_NAME = 500
# Of dates that can be printed, in seconds since 1970.
_END_OF_TIME = 2.5e11
_OP_NAME = re.compile(r"[A-Za-z_][\w>.]*", re.ASCII)
_INPUT_DTYPES = frozenset(DTYPE_BYTES) | {MEASURED_DTYPE}


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a trial of two graphs ended.

    Attributes:
        faster: whether the rewritten graph was.
        ratio: seconds before over seconds after.
        when: seconds since 1970.
    """

    faster: bool
    ratio: float
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
            seconds=_number(columns, "seconds", above=0.0),
            cold_seconds=_number(columns, "cold_seconds", above=0.0),
            spread=_number(columns, "spread"),
            count=_count(columns.get("count")),
            when=_number(columns, "when", below=_END_OF_TIME),
        )
        measured = Measured(_probe(columns.get("probe")), _dtype(columns), sample)
        return cls(_name(columns, "device"), _name(columns, "tensorflow"), measured)


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
        return (*self.identity, bool(it.faster), float(it.ratio), float(it.when))

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
            ratio=_number(columns, "ratio", above=0.0),
            when=_number(columns, "when", below=_END_OF_TIME),
        )
        device, tensorflow = _name(columns, "device"), _name(columns, "tensorflow")
        return cls(device, tensorflow, _name(columns, "fingerprint"), verdict)


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
        device, tensorflow = _name(columns, "device"), _name(columns, "tensorflow")
        fingerprint = _name(columns, "fingerprint")
        return cls(device, tensorflow, fingerprint, _number(columns, "seconds"))


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
    return max(one, other, key=lambda each: (each.when, not each.faster, -each.ratio))


def _support(sample: Sample) -> tuple[float, ...]:
    error = max(sample.spread, _LEAST_SPREAD) / math.sqrt(sample.count)
    figures = (sample.seconds, sample.cold_seconds, sample.spread)
    return (-error, sample.when, sample.count, *(-figure for figure in figures))


def _number(
    columns: Mapping[str, object],
    name: str,
    *,
    above: float | None = None,
    below: float = 1e300,
) -> float:
    value = columns.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Comparing before converting: an int may be too large to become a float.
    if is_number and isinstance(value, int | float) and 0 <= value < below:
        if above is None or value > above:
            return float(value)
    wanted = "0 or more" if above is None else "positive"
    raise ValueError(f"{name}: received {_shown(value)}; wanted is a number, {wanted}")


def _count(value: object) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and isinstance(value, int) and 1 <= value <= _LARGEST_COUNT:
        return value
    raise ValueError(f"count: received {_shown(value)}; wanted is 1 or more")


def _dtype(columns: Mapping[str, object]) -> str:
    value = columns.get("dtype")
    if isinstance(value, str) and value in FLOATING:
        return value
    allowed = ", ".join(sorted(FLOATING))
    raise ValueError(f"dtype: received {_shown(value)}; allowed are {allowed}")


def _name(columns: Mapping[str, object], name: str) -> str:
    value = columns.get(name)
    if not isinstance(value, str) or not value or len(value) > _LONGEST_NAME:
        raise ValueError(f"{name}: received {_shown(value)}; wanted is a short text")
    if not value.isprintable():
        raise ValueError(f"{name}: received {_shown(value)}, which cannot be printed")
    return value


def _probe(key: object) -> Probe:
    if not isinstance(key, str):
        raise ValueError(f"probe: received {_shown(key)}; wanted is a probe's key")
    try:
        probe = Probe.from_key(key)
        is_probe = _is_sensible(probe) and probe.key == key
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        is_probe = False
    if not is_probe:
        raise ValueError(f"probe: received {_shown(key)}; wanted is a probe's key")
    return probe


def _is_sensible(probe: Probe) -> bool:
    return (
        _OP_NAME.fullmatch(probe.op) is not None
        and all(_is_shape(spec.shape) for spec in probe.inputs)
        and all(spec.dtype in _INPUT_DTYPES for spec in probe.inputs)
        and all(
            0 <= position < len(probe.inputs) and _is_constant(each)
            for position, each in probe.constants
        )
    )


def _is_constant(constant: Constant) -> bool:
    are_values = all(isinstance(value, int | float) for value in constant.values)
    return constant.dtype in DTYPE_BYTES and _is_shape(constant.shape) and are_values


def _is_shape(shape: tuple[int | None, ...] | None) -> bool:
    return shape is not None and all(isinstance(s, int) and s >= 0 for s in shape)


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
