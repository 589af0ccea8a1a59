"""Values of a row's columns: nothing is believed before it is checked.

A row may come from a file that somebody else wrote.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from grappler_pass.costs.calls import DTYPE_BYTES, FLOATING
from grappler_pass.costs.probes import MEASURED_DTYPE, Constant, Probe

_LARGEST_COUNT = 2**53
_LONGEST_NAME = 500
# Of two machines, or of one that was set right.
_CLOCKS_DIFFER_SECONDS = 86400.0
_OP_NAME = re.compile(r"[A-Za-z_][\w>.]*", re.ASCII)
_INPUT_DTYPES = frozenset(DTYPE_BYTES) | {MEASURED_DTYPE}


def read_number(
    columns: Mapping[str, object],
    name: str,
    *,
    above: float | None = None,
    most: float = 1e300,
) -> float:
    """Return a number of 0 or more, or greater than `above`; `most` at most.

    Raises:
        ValueError: it is missing, of a wrong type or out of range; as all below.
    """
    value = columns.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Comparing before converting: an int may be too large to become a float.
    if is_number and isinstance(value, int | float) and 0 <= value <= most:
        if above is None or value > above:
            return float(value)
    least = "0 or more" if above is None else f"more than {above:g}"
    raise ValueError(
        f"{name}: received {_shown(value)}; wanted is a number, {least} and at most "
        f"{most:g}"
    )


def read_time(columns: Mapping[str, object]) -> float:
    """Return when something was measured, in seconds since 1970."""
    try:
        return read_number(columns, "when", most=time.time() + _CLOCKS_DIFFER_SECONDS)
    except ValueError as error:
        # What claims to be from the future would count as the newest for ever.
        raise ValueError(f"{error}, a day from now") from error


def read_count(columns: Mapping[str, object]) -> int:
    """Return how often something was measured."""
    value = columns.get("count")
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and isinstance(value, int) and 1 <= value <= _LARGEST_COUNT:
        return value
    raise ValueError(f"count: received {_shown(value)}; wanted is 1 or more")


def read_dtype(columns: Mapping[str, object]) -> str:
    """Return the floating type that was measured."""
    value = columns.get("dtype")
    if isinstance(value, str) and value in FLOATING:
        return value
    allowed = ", ".join(sorted(FLOATING))
    raise ValueError(f"dtype: received {_shown(value)}; allowed are {allowed}")


def read_name(columns: Mapping[str, object], name: str) -> str:
    """Return a short text that can be printed."""
    value = columns.get(name)
    if not isinstance(value, str) or not value or len(value) > _LONGEST_NAME:
        raise ValueError(f"{name}: received {_shown(value)}; wanted is a short text")
    if not value.isprintable():
        raise ValueError(f"{name}: received {_shown(value)}, which cannot be printed")
    return value


def read_probe(columns: Mapping[str, object]) -> Probe:
    """Return the probe whose key is given."""
    key = columns.get("probe")
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
