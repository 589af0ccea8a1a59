"""The rows of the cost database: as text, and which of two is the better.

A row is kept, and carried to another machine, as one JSON object on a line. It may come
from a file that somebody else wrote: nothing is believed before it is checked.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple, TypeVar

from grappler_pass.costs.calls import DTYPE_BYTES, FLOATING
from grappler_pass.costs.database.price_list import Measured, Sample
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Probe

# A spread below this is luck: machines repeat themselves no better.
_LEAST_SPREAD = 0.02
# Of two machines, or of one that was set right.
_CLOCKS_DIFFER_SECONDS = 86400.0
_OP_NAME = re.compile(r"[A-Za-z_][\w>.]*", re.ASCII)
_INPUT_DTYPES = {*DTYPE_BYTES, MEASURED_DTYPE}
_FIGURES = tuple(field.name for field in fields(Sample))

# What a text that is not the key of a probe may lead to.
_GARBLED = (
    *(ValueError, TypeError, LookupError, AttributeError),
    *(ArithmeticError, RecursionError),
)

# What no two rows have in common: the device, TensorFlow, and kind with subject.
Identity = tuple[str, str, str]


class CostRow(NamedTuple):
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


class Verdict(NamedTuple):
    """Whether a rewritten graph was the faster, on which device.

    Seconds are those of a step; `when` are seconds since 1970.
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


class Spending(NamedTuple):
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


def text_from_row(row: Row) -> str:
    """Return a row as one line of JSON."""
    plain = row._asdict()
    if isinstance(row, CostRow):
        it = plain.pop("measured")
        plain |= {"probe": it.probe.key, "dtype": it.dtype, **asdict(it.sample)}
    return json.dumps(plain)


def row_from_text(text: str | bytes) -> Row:
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
        _check(plain, kind._fields)
        return kind(**plain)
    key = plain.pop("probe", None)
    _check(plain, ("device", "tensorflow", "dtype", *_FIGURES))
    sample = Sample(*(plain[name] for name in _FIGURES))
    measured = Measured(_probe_from_key(key), plain["dtype"], sample)
    return CostRow(plain["device"], plain["tensorflow"], measured)


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


def _check(plain: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise ValueError unless these are the columns, and their values allowed."""
    if unknown := sorted(set(plain) - set(names)):
        raise ValueError(f"unknown column {unknown[0][:40]!r}")
    for name in names:
        is_allowed, wanted = _COLUMNS[name]
        if not is_allowed(value := plain.get(name)):
            shown = "nothing" if value is None else f"{value!r:.60}"
            raise ValueError(f"{name}: received {shown}; wanted is {wanted}")


def _is_number(value: Any, least: float, most: float) -> bool:
    return type(value) in (int, float) and least <= value <= most


def _is_text(value: Any) -> bool:
    return type(value) is str and 0 < len(value) <= 500 and value.isprintable()


def _probe_from_key(key: Any) -> Probe:
    """Return the probe of a key, which is of an op and as a probe itself makes it."""
    try:
        probe = Probe.from_key(key)
        if probe.key == key and _is_sensible(probe):
            return probe
    except _GARBLED:
        pass
    raise ValueError(f"probe: received {key!r:.60}; wanted is a probe's key")


def _is_sensible(probe: Probe) -> bool:
    constants = [constant for _, constant in probe.constants]
    shapes = [spec.shape or () for spec in probe.inputs]
    shapes += [constant.shape for constant in constants]
    values = [value for constant in constants for value in constant.values]
    return (
        _OP_NAME.fullmatch(probe.op) is not None
        and all(size is not None and size >= 0 for shape in shapes for size in shape)
        and {spec.dtype for spec in probe.inputs} <= _INPUT_DTYPES
        and {constant.dtype for constant in constants} <= set(DTYPE_BYTES)
        and all(isinstance(value, int | float) for value in values)
        and all(0 <= position < len(probe.inputs) for position, _ in probe.constants)
    )


_TEXT = (_is_text, "a short text that can be printed")
# Nobody measures for longer, nor does any op scatter so wildly; beyond, prices would
# leave the numbers that a computer has.
_SECONDS = (
    lambda value: _is_number(value, math.ulp(0.0), 1e5),
    "a number, more than 0 and at most 100000",
)
# What checks whether the value of a column is allowed, and what is.
_COLUMNS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "device": _TEXT,
    "tensorflow": _TEXT,
    "fingerprint": _TEXT,
    "dtype": (
        lambda value: value in tuple(FLOATING),
        " or ".join(sorted(FLOATING)),
    ),
    "seconds": _SECONDS,
    "cold_seconds": _SECONDS,
    "seconds_before": _SECONDS,
    "seconds_after": _SECONDS,
    "spent_seconds": (
        lambda value: _is_number(value, 0.0, 1e300),
        "a number, 0 or more and at most 1e300",
    ),
    "spread": (
        lambda value: _is_number(value, 0.0, 10.0),
        "a number, 0 or more and at most 10",
    ),
    "count": (
        lambda value: type(value) is int and 1 <= value <= 2**53,
        "a whole number, 1 or more",
    ),
    # What claims to be from the future would count as the newest for ever.
    "when": (
        lambda value: _is_number(value, 0.0, time.time() + _CLOCKS_DIFFER_SECONDS),
        "seconds since 1970, 0 or more and at most a day from now",
    ),
    "faster": (lambda value: type(value) is bool, "true or false"),
}
