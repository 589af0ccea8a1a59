"""Regular expressions for what stays float32: checked when given, not when used.

What they are matched against is decided in `grappler_pass.exclusions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tf_amp.errors import ConfigError


def checked_patterns(value: object, name: str = "exclude") -> tuple[str, ...]:
    """Return the patterns as a tuple.

    Args:
      value: one regular expression, or several.
      name: of the setting, for the error.

    Raises:
      ConfigError: a pattern is no text, empty, or no regular expression.
    """
    patterns = (value,) if isinstance(value, str | re.Pattern) else value
    if not isinstance(patterns, Iterable):
        raise ConfigError(
            f"{name}: received {value!r}; allowed are regular expressions for names "
            "of operations, such as ['softmax', '^head/']."
        )
    return tuple(_checked(pattern, name) for pattern in patterns)


def patterns_from_text(text: str, name: str) -> tuple[str, ...]:
    """Read patterns with spaces between, since no name of an operation holds one."""
    return checked_patterns(text.split(), name)


def _checked(pattern: object, name: str) -> str:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            f"{name}: received {pattern!r} as a pattern; a regular expression is "
            "needed, as text that is not empty."
        )
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{name}: {text!r} is no regular expression: {error}."
        ) from error
    return text
