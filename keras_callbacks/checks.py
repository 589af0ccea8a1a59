"""Checks of what callbacks are given."""

from __future__ import annotations

from typing import Any

from tf_amp.errors import ConfigError


def check_one_of(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ConfigError unless a value is one of those allowed, of the same type."""
    if not any(type(value) is type(each) and value == each for each in allowed):
        words = ", ".join(map(repr, allowed))
        raise ConfigError(f"{owner}: {name}={value!r}; allowed are {words}.")


def check_count(owner: str, name: str, value: Any, smallest: int = 1) -> int:
    """Return a whole number, or raise ConfigError where it is too small or none."""
    if type(value) is not int or value < smallest:
        raise ConfigError(
            f"{owner}: {name}={value!r}; allowed are whole numbers from {smallest} on."
        )
    return value
