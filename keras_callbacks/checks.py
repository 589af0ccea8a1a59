"""Checks of what callbacks are given."""

from __future__ import annotations

from typing import Any

from tf_amp.errors import ConfigError


def check_one_of(owner: str, name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    """Raise ConfigError unless a value is one of those allowed, of the same type."""
    if not any(type(value) is type(each) and value == each for each in allowed):
        words = ", ".join(map(repr, allowed))
        raise ConfigError(f"{owner}: {name}={value!r}; allowed are {words}.")
