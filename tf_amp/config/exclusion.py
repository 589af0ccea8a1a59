"""Regular expressions for what stays float32: checked when given, not when used.

What they are matched against is decided in `grappler_pass.eligibility.exclusions`.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Iterable, Iterator

from tf_amp.errors import ConfigError


def checked_patterns(value: object, name: str = "exclude") -> tuple[str, ...]:
    """Return one regular expression, or several, as a tuple.

    `@FILE` stands for those in a file, one per line, where lines that begin with # are
    comments.

    Raises:
      ConfigError: a pattern is no text, empty, or no regular expression; or a file
        cannot be read.
    """
    patterns = (value,) if isinstance(value, str | re.Pattern) else value
    if not isinstance(patterns, Iterable):
        raise ConfigError(
            f"{name}: received {value!r}; allowed are regular expressions for names "
            "of operations, such as ['softmax', '^head/'], and Keras layers."
        )
    spelled_out = (p for given in patterns for p in _spelled_out(given, name))
    return tuple(_checked(pattern, name) for pattern in spelled_out)


def patterns_from_text(text: str, name: str) -> tuple[str, ...]:
    """Read patterns with spaces between, since no name of an operation holds one."""
    return checked_patterns(text.split(), name)


def _spelled_out(given: object, name: str) -> Iterator[object]:
    """Yield a pattern, or those in the file that it names."""
    if not isinstance(given, str) or not given.startswith("@"):
        yield given
        return
    path = pathlib.Path(os.path.expanduser(given[1:]))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{name}: received {given}, but {path} cannot be read: {error}."
        ) from error
    yield from (line for line in map(str.strip, lines) if line and line[0] != "#")


def _checked(pattern: object, name: str) -> str:
    text = pattern.pattern if isinstance(pattern, re.Pattern) else pattern
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            f"{name}: received {pattern!r} as a pattern; a regular expression is "
            "needed, as text that is not empty; or a Keras layer, for what is traced."
        )
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(
            f"{name}: {text!r} is no regular expression: {error}."
        ) from error
    return text
