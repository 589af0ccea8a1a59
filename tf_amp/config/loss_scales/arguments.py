"""Checks of the arguments of loss scales.

Each function returns the value, or raises ConfigError with the class that it is for,
the argument's name, and what is allowed. Ranges are looked at first: nobody is to be
advised of a number that is refused next.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

from tf_amp.errors import ConfigError

# Beyond it, the reciprocal is no normal float32, and becomes zero on most devices.
LARGEST_SCALE = 2.0**126


def argument(default: Any, check: Callable[..., Any], **limits: Any) -> Any:
    """Return a field of a dataclass whose values `check_arguments` is to check.

    Args:
      default: its default.
      check: takes the class's name, the field's and a value, as those below do.
      **limits: further arguments of the check.
    """
    checks = {"check": functools.partial(check, **limits)}
    return dataclasses.field(default=default, metadata=checks)


def check_arguments(owner: str, loss_scale: Any) -> None:
    """Check each field of a frozen dataclass, and keep what its check returns."""
    for field in dataclasses.fields(loss_scale):
        value = getattr(loss_scale, field.name)
        checked = field.metadata["check"](owner, field.name, value)
        object.__setattr__(loss_scale, field.name, checked)


def check_power_of_two(
    owner: str, name: str, value: float, *, above: float = 0.0, below: float = math.inf
) -> float:
    """Return a power of two within float32's range and between two others, as a float.

    It exceeds `above`, 0 or a power of two, and stays under `below`, or infinity.
    """
    checked = check_positive(owner, name, value, above=above, below=below)
    if math.frexp(checked)[0] != 0.5:
        near = 2.0 ** round(math.log2(checked))
        near = min(max(near, 2 * above), below / 2)
        raise ConfigError(
            f"{owner}: {name}={value!r} is not a power of two, so that scaling would "
            f"round every gradient; the nearest is {near!r}."
        )
    return checked


def check_positive(
    owner: str, name: str, value: float, *, above: float = 0.0, below: float = math.inf
) -> float:
    """Return a positive number that float32 can hold, and divide by, as a float."""
    number = check_within(owner, name, value, above=above, below=below)
    if not 1 / LARGEST_SCALE <= number <= LARGEST_SCALE:
        raise ConfigError(
            f"{owner}: {name}={value!r}; allowed are positive numbers from 2**-126 to "
            "2**126."
        )
    return number


def check_within(
    owner: str, name: str, value: float, *, above: float, below: float
) -> float:
    """Return a number between two others, as a float."""
    if not is_number(value):
        raise ConfigError(f"{owner}: {name}={value!r}; it must be a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if not above < number or number >= below < math.inf:
        lies = f"be above {above:g}"
        if below < math.inf:
            lies = f"lie between {above:g} and {below:g}"
        raise ConfigError(f"{owner}: {name}={value!r}; it must {lies}.")
    return number


def is_number(value: object) -> bool:
    """Tell whether something is a real number, one of NumPy's included; no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_count(owner: str, name: str, value: int, smallest: int = 1) -> int:
    """Return a whole number from `smallest` on that an int64 holds, as an int."""
    is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not is_whole or not smallest <= value < 2**63:
        raise ConfigError(
            f"{owner}: {name}={value!r}; allowed are ints from {smallest} to 2**63 - 1."
        )
    return int(value)


def check_word(owner: str, name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return one of the words allowed."""
    if value not in allowed:
        raise ConfigError(
            f"{owner}: {name}={value!r}; allowed are {', '.join(allowed)}."
        )
    return value


def check_bounds(owner: str, initial: float, minimum: float, maximum: float) -> None:
    """Raise ConfigError unless minimum <= initial <= maximum."""
    if minimum > maximum:
        raise ConfigError(f"{owner}: minimum={minimum!r} is above maximum={maximum!r}.")
    if not minimum <= initial <= maximum:
        raise ConfigError(
            f"{owner}: initial={initial!r} lies outside of minimum={minimum!r} and "
            f"maximum={maximum!r}."
        )
