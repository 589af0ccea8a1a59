"""The methods that are held against each other, as a command line names them.

Behind `tf-amp:` stand settings of its own, joined by +: a level, then variables without
their TF_AMP_, such as `tf-amp:O2+TUNE=off`.
"""

from __future__ import annotations

import re

from tf_amp.config.amp_config import (
    CACHE,
    DEFAULT_LEVEL,
    LEVELS,
    OPT_LEVEL,
    OWN_NAMES,
    OWN_PREFIX,
    AmpConfig,
)
from tf_amp.errors import ConfigError

FLOAT32, AGAIN, KERAS, TENSORFLOW, OURS = (
    "float32",
    "float32 again",
    "keras",
    "tensorflow",
    "tf-amp",
)
METHODS = (FLOAT32, KERAS, TENSORFLOW, OURS)
# Regular expressions among the values may have a + of their own.
_BEFORE_SETTING = re.compile(r"\+(?=[A-Z_]+=)")
_SMALL_LEVEL = re.compile(rf"(?<=^{OURS}:)o")
# What is measured is the job's, and no method's own.
_SETTINGS = {*OWN_NAMES} - {CACHE}


def methods_from_text(text: str) -> tuple[str, ...]:
    """Return methods from a list, with float32 and its repetition in front.

    Raises:
      ConfigError: one is unknown, or a setting or its value is.
    """
    given = [_checked(each.strip()) for each in text.split(",")]
    return tuple(dict.fromkeys((FLOAT32, AGAIN, *given)))


def is_ours(method: str) -> bool:
    """Return whether a method is tf-amp, with whatever settings."""
    return method.partition(":")[0] == OURS


def settings_of_method(method: str) -> dict[str, str]:
    """Return the variables that a method sets, beside the user's own."""
    _, colon, text = method.partition(":")
    parts = _BEFORE_SETTING.split(text) if colon else []
    pairs = (each.partition("=") for each in parts)
    return {
        OWN_PREFIX + name if equals else OPT_LEVEL: value if equals else name
        for name, equals, value in pairs
    }


def _checked(text: str) -> str:
    method = _SMALL_LEVEL.sub("O", text)
    if method in (*METHODS, AGAIN):
        return method
    settings = settings_of_method(method) if is_ours(method) else {"": ""}
    level = settings.get(OPT_LEVEL, DEFAULT_LEVEL)
    is_known = settings.keys() <= _SETTINGS and level in LEVELS
    if not (is_known and all(settings.values())):
        raise ConfigError(f"--methods: received {text!r}; allowed are {_allowed()}.")
    try:
        AmpConfig.from_env(settings)
    except ConfigError as error:
        raise ConfigError(f"--methods: received {text!r}; {error}") from error
    return method


def _allowed() -> str:
    names = sorted(name.removeprefix(OWN_PREFIX) for name in _SETTINGS)
    return (
        f"{', '.join(METHODS)}, and {OURS}:LEVEL+NAME=VALUE, both or one of them, with "
        f"a level of {', '.join(LEVELS)} and names of {', '.join(names)}"
    )
