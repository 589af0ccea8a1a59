"""Values of a row's columns: nothing is believed before it is checked.

A row may come from a file that somebody else wrote.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from grappler_pass.costs.calls import DTYPE_BYTES, FLOATING
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Probe

# Of two machines, or of one that was set right.
_CLOCKS_DIFFER_SECONDS = 86400.0
_OP_NAME = re.compile(r"[A-Za-z_][\w>.]*", re.ASCII)
_INPUT_DTYPES = {*DTYPE_BYTES, MEASURED_DTYPE}


def checked(plain: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the values of a row that was read from JSON, which has these columns.

    Raises:
        ValueError: a column is missing, unknown, of a wrong type or out of range.
    """
    if unknown := sorted(set(plain) - set(names)):
        raise ValueError(f"unknown column {unknown[0][:40]!r}")
    values = {}
    for name in names:
        read, wanted = _COLUMNS[name]
        values[name] = read(received := plain.get(name))
        if values[name] is None:
            shown = "nothing" if received is None else f"{received!r:.60}"
            raise ValueError(f"{name}: received {shown}; wanted is {wanted}")
    return values


def _number(least: float, most: float) -> Callable[[Any], float | None]:
    def read(value: Any) -> float | None:
        is_number = type(value) in (int, float) and least <= value <= most
        return float(value) if is_number else None

    return read


def _time(value: Any) -> float | None:
    # What claims to be from the future would count as the newest for ever.
    return _number(0.0, time.time() + _CLOCKS_DIFFER_SECONDS)(value)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 1 <= value <= 2**53 else None


def _truth(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _text(value: Any) -> str | None:
    is_short = type(value) is str and 0 < len(value) <= 500
    return value if is_short and value.isprintable() else None


def _dtype(value: Any) -> str | None:
    return value if type(value) is str and value in FLOATING else None


def _probe(key: Any) -> Probe | None:
    try:
        probe = Probe.from_key(key)
        return probe if _is_sensible(probe) and probe.key == key else None
    except (ValueError, TypeError, ArithmeticError, RecursionError):
        return None


def _is_sensible(probe: Probe) -> bool:
    constants = [constant for _, constant in probe.constants]
    shapes = [spec.shape or () for spec in probe.inputs]
    shapes += [constant.shape for constant in constants]
    values = [value for constant in constants for value in constant.values]
    return (
        _OP_NAME.fullmatch(probe.op) is not None
        and all(type(size) is int and size >= 0 for shape in shapes for size in shape)
        and {spec.dtype for spec in probe.inputs} <= _INPUT_DTYPES
        and {constant.dtype for constant in constants} <= set(DTYPE_BYTES)
        and all(isinstance(value, int | float) for value in values)
        and all(0 <= position < len(probe.inputs) for position, _ in probe.constants)
    )


_TEXT = (_text, "a short text that can be printed")
# Nobody measures for longer, nor does any op scatter so wildly; beyond, prices would
# leave the numbers that a computer has.
_SECONDS = (_number(math.ulp(0.0), 1e5), "a number, more than 0 and at most 100000")
# What reads the value of a column, None where it is not allowed; and what is.
_COLUMNS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "device": _TEXT,
    "tensorflow": _TEXT,
    "fingerprint": _TEXT,
    "probe": (_probe, "a probe's key"),
    "dtype": (_dtype, " or ".join(sorted(FLOATING))),
    "seconds": _SECONDS,
    "cold_seconds": _SECONDS,
    "seconds_before": _SECONDS,
    "seconds_after": _SECONDS,
    "spent_seconds": (_number(0.0, 1e300), "a number, 0 or more and at most 1e300"),
    "spread": (_number(0.0, 10.0), "a number, 0 or more and at most 10"),
    "count": (_count, "a whole number, 1 or more"),
    "when": (_time, "seconds since 1970, 0 or more and at most a day from now"),
    "faster": (_truth, "true or false"),
}
