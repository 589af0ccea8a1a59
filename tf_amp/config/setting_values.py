"""What the value of a setting may be, whoever gives it.

Each function returns the value as the configuration holds it, or raises ConfigError
with the setting's name, what was received and what is allowed.
"""

from __future__ import annotations

import difflib
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence

from grappler_pass.fusions import RULES
from tf_amp.errors import ConfigError

ON = ("1", "true", "on")
OFF = ("0", "false", "off")
DEFAULT_TUNE = "on"
# What was measured beside the program once took so long.
_EARLIER_TUNE = re.compile(r"budget(:[0-9.e+]+)?|full")


def checked_word(
    value: object,
    name: str,
    allowed: tuple[str, ...],
    fold: Callable[[str], str] = str.lower,
) -> str:
    """Return one of the words allowed, in whatever case it was given."""
    text = fold(value) if isinstance(value, str) else value
    if isinstance(text, str) and text in allowed:
        return text
    raise ConfigError(f"{name}: received {value!r}; allowed are {', '.join(allowed)}.")


def checked_bool(value: object, name: str) -> bool:
    """Return True or False; words such as "no" would all be true."""
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{name}: received {value!r}; allowed are True and False.")


def checked_path(value: object, name: str) -> pathlib.Path:
    """Return a path that was given as one or as text; `~` is the home folder.

    It is absolute, since the program may change to another folder before it is used.
    """
    return pathlib.Path(_path_text(value, name, "a path")).absolute()


def checked_profile(value: object, name: str = "device_profile") -> str:
    """Return a profile's name as given, or its path: `./v100` is no shipped profile."""
    text = _path_text(value, name, "a profile's name, or its path")
    is_path = os.sep in text or text.endswith(".json")
    return str(pathlib.Path(text).absolute()) if is_path else text


def checked_tune(value: object, name: str = "tune") -> str:
    """Return what `AmpConfig.tune` may be."""
    text = value.strip().lower() if isinstance(value, str) else str(value)
    if text in OFF:
        return "off"
    if text not in ON and not _EARLIER_TUNE.fullmatch(text):
        raise ConfigError(f"{name}: received {value!r}; allowed are on and off.")
    if text not in ON:
        from absl import logging

        said = "%s=%s means on: only the program's own steps are timed."
        logging.log_first_n(logging.WARNING, said, 1, name, text)
    return DEFAULT_TUNE


def checked_tie(value: object, name: str = "tie") -> float:
    """Return what `AmpConfig.tie` may be."""
    share = _number(str(value))
    if 0.0 <= share <= 1.0:
        return share
    raise ConfigError(f"{name}: received {value!r}; allowed are numbers from 0 to 1.")


def checked_tolerance(value: object, name: str = "tolerance") -> float | None:
    """Return a largest relative error; None: by the type."""
    tolerance = None if value is None else _number(str(value))
    if tolerance is None or 0.0 < tolerance < math.inf:
        return tolerance
    raise ConfigError(
        f"{name}: received {value!r}; allowed are numbers greater than 0."
    )


def checked_fusions(value: object, name: str = "fuse") -> tuple[str, ...]:
    """Return what `AmpConfig.fuse` may be, each name once."""
    text = value.strip().lower() if isinstance(value, str) else value
    if text in OFF:
        return ()
    if text in ON:
        return RULES
    words = re.split(r"[\s,]+", text) if isinstance(text, str) else text
    given = set(words) if isinstance(words, Iterable) else set()
    if given and given <= {*RULES}:
        return tuple(rule for rule in RULES if rule in given)
    raise ConfigError(
        f"{name}: received {value!r}; allowed are on, off and {', '.join(RULES)}."
    )


def _path_text(value: object, name: str, allowed: str) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, str) and text:
        # What a shell does, where the variable is set in one.
        return os.path.expanduser(text)
    raise ConfigError(f"{name}: received {value!r}; allowed is {allowed}.")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def refuse_unknown(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ConfigError for the first of the names, by alphabet, that is not known."""
    unknown = sorted(set(names) - set(known))
    if not unknown:
        return
    near = difflib.get_close_matches(unknown[0], known, n=1)
    guess = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(
        f"{unknown[0]} is no setting{guess}. Known are {', '.join(known)}."
    )
