"""The configuration: one frozen value, read once from the environment.

Decides what the user asked for, and refuses what is unknown or contradicts itself.
What the answer means for a device or a graph is decided elsewhere (`devices`,
`runtime`). Nothing else in the package reads the environment.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from tf_amp import list_edits
from tf_amp.errors import ConfigError
from tf_amp.exclusion import patterns_from_text
from tf_amp.list_edits import ListEdit
from tf_amp.loss_scaling import (
    LossScale,
    loss_scale_from_words,
    words_from_loss_scale,
)
from tf_amp.presets import DEFAULT_LEVEL, level_names
from tf_amp.setting_names import refuse_unknown

SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE_SWITCH = f"{SWITCH}_GRAPH_REWRITE"
LOSS_SCALING_SWITCH = f"{SWITCH}_LOSS_SCALING"
SWITCHES = (SWITCH, REWRITE_SWITCH, LOSS_SCALING_SWITCH)
_SWITCH_PREFIX = "TF_ENABLE_AUTO_MIXED"
OWN_PREFIX = "TF_AMP_"
OPT_LEVEL = "TF_AMP_OPT_LEVEL"
DTYPE = "TF_AMP_DTYPE"
DEVICE_PROFILE = "TF_AMP_DEVICE_PROFILE"
LOG = "TF_AMP_LOG"
STRICT = "TF_AMP_STRICT"
CACHE = "TF_AMP_CACHE"
EXCLUDE = "TF_AMP_EXCLUDE"
TUNE = "TF_AMP_TUNE"
TIE = "TF_AMP_TIE"
LOSS_SCALE = "TF_AMP_LOSS_SCALE"
RANGES = "TF_AMP_RANGES"
OWN_NAMES = (
    OPT_LEVEL,
    DTYPE,
    DEVICE_PROFILE,
    LOG,
    STRICT,
    CACHE,
    EXCLUDE,
    TUNE,
    TIE,
    LOSS_SCALE,
    RANGES,
)

LOW_DTYPES = ("bfloat16", "float16")
DTYPES = ("float32", *LOW_DTYPES)
DEFAULT_TUNE = "budget"
DEFAULT_TIE = 0.01
_TUNE_WORDS = ("off", "budget", "full")
_ON = ("1", "true", "on")
_OFF = ("0", "false", "off")

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class AmpConfig:
    """What the user asked for.

    Attributes:
      enabled: whether graphs are rewritten; None where nothing was said.
      dtype: "bfloat16" or "float16"; None leaves the choice to the device.
      opt_level: a row of `presets.PRESETS`.
      device_profile: name or path of the profile to plan for; None means this device.
      log_dir: where each graph is written before and after, with its plan.
      strict: whether a rewrite that fails raises.
      cache_dir: where calibrations are kept; None means nowhere.
      loss_scaling: whether losses are scaled; None leaves the choice to the dtype.
      list_edits: changes to the op lists, in the order given.
      exclude: regular expressions; operations with such a name, and their gradients,
        stay float32.
      tune: "off", "budget" or "full": whether what a plan hangs on is measured, within
        a budget of time or without one; "budget:SECONDS" is that much per process.
      tie: share of its seconds, 0 to 1, by which an operation may be slower in 16 bits
        if its results take half the memory.
      loss_scale: what losses are scaled by, whatever the dtype; None leaves the choice
        to the dtype.
      ranges: file of the ranges that tensors were seen to keep to; operations whose
        tensors leave the safe range stay float32.
    """

    enabled: bool | None = None
    dtype: str | None = None
    opt_level: str = DEFAULT_LEVEL
    device_profile: str | None = None
    log_dir: pathlib.Path | None = None
    strict: bool = False
    cache_dir: pathlib.Path | None = None
    loss_scaling: bool | None = None
    list_edits: tuple[ListEdit, ...] = ()
    exclude: tuple[str, ...] = ()
    tune: str = DEFAULT_TUNE
    tie: float = DEFAULT_TIE
    loss_scale: LossScale | None = None
    ranges: pathlib.Path | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> AmpConfig:
        """Read every setting from the environment's variables.

        Args:
          environ: names and values; the process's own environment by default.

        Raises:
          ConfigError: a value or a name is unknown, or two variables contradict each
            other; the message names them.
        """
        variables = os.environ if environ is None else environ
        given = {name: value.strip() for name, value in variables.items()}
        refuse_unknown((n for n in given if n.startswith(OWN_PREFIX)), OWN_NAMES)
        refuse_unknown((n for n in given if n.startswith(_SWITCH_PREFIX)), SWITCHES)
        return cls(
            enabled=_read_enabled(given),
            dtype=_read_dtype(given),
            opt_level=_read(given, OPT_LEVEL, checked_level, DEFAULT_LEVEL),
            device_profile=given.get(DEVICE_PROFILE) or None,
            log_dir=_read(given, LOG, pathlib.Path, None),
            strict=bool(_read_flag(given, STRICT)),
            cache_dir=_read_cache_dir(given),
            loss_scaling=_read_flag(given, LOSS_SCALING_SWITCH),
            list_edits=list_edits.edits_from_env(given),
            exclude=_read(given, EXCLUDE, patterns_from_text, ()),
            tune=_read(given, TUNE, checked_tune, DEFAULT_TUNE),
            tie=_read(given, TIE, checked_tie, DEFAULT_TIE),
            loss_scale=_read(given, LOSS_SCALE, loss_scale_from_words, None),
            ranges=_read(given, RANGES, pathlib.Path, None),
        )

    def to_env(self) -> dict[str, str]:
        """Return variables that `from_env` reads back equal."""
        flags = {True: "1", False: "0", None: ""}
        variables = {
            SWITCH: flags[self.enabled],
            LOSS_SCALING_SWITCH: flags[self.loss_scaling],
            DTYPE: self.dtype or "",
            OPT_LEVEL: self.opt_level,
            DEVICE_PROFILE: self.device_profile or "",
            LOG: str(self.log_dir or ""),
            STRICT: flags[self.strict],
            CACHE: str(self.cache_dir or ""),
            EXCLUDE: " ".join(self.exclude),
            TUNE: self.tune,
            TIE: repr(self.tie),
            LOSS_SCALE: _words_if_any(self.loss_scale),
            RANGES: str(self.ranges or ""),
            **list_edits.env_from_edits(self.list_edits),
        }
        return {name: value for name, value in variables.items() if value}


def _words_if_any(loss_scale: LossScale | None) -> str:
    return "" if loss_scale is None else words_from_loss_scale(loss_scale)


def checked_dtype(value: object, name: str = "dtype") -> str:
    """Return the 16-bit type's name, or raise ConfigError."""
    return _checked(value, name, LOW_DTYPES)


def checked_any_dtype(value: object, name: str) -> str:
    """Return the name of float32 or of a 16-bit type, or raise ConfigError."""
    return _checked(value, name, DTYPES)


def checked_level(value: object, name: str = "opt_level") -> str:
    """Return the level's name, or raise ConfigError."""
    return _checked(value, name, level_names(), str.upper)


def checked_tune(value: object, name: str = "tune") -> str:
    """Return what `AmpConfig.tune` may be, or raise ConfigError."""
    text = value.strip().lower() if isinstance(value, str) else value
    if text in _OFF:
        return "off"
    if text in _ON:
        return DEFAULT_TUNE
    word, _, seconds = str(text).partition(":")
    if text in _TUNE_WORDS or (word == "budget" and _is_positive(seconds)):
        return str(text)
    raise ConfigError(
        f"{name}: received {value!r}; allowed are {', '.join(_TUNE_WORDS)}, and "
        "budget:SECONDS with a number greater than 0."
    )


def checked_tie(value: object, name: str = "tie") -> float:
    """Return what `AmpConfig.tie` may be, or raise ConfigError."""
    try:
        share = float(str(value))
    except ValueError:
        share = math.nan
    if 0.0 <= share <= 1.0:
        return share
    raise ConfigError(f"{name}: received {value!r}; allowed are numbers from 0 to 1.")


def _is_positive(text: str) -> bool:
    try:
        return 0.0 < float(text) < math.inf
    except ValueError:
        return False


def _checked(
    value: object,
    name: str,
    allowed: tuple[str, ...],
    fold: Callable[[str], str] = str.lower,
) -> str:
    text = fold(value) if isinstance(value, str) else value
    if isinstance(text, str) and text in allowed:
        return text
    raise ConfigError(f"{name}: received {value!r}; allowed are {', '.join(allowed)}.")


def _read(
    given: Mapping[str, str], name: str, parse: Callable[..., _T], default: _T
) -> _T:
    value = given.get(name)
    if not value:
        return default
    return parse(value) if parse is pathlib.Path else parse(value, name)


def _read_flag(given: Mapping[str, str], name: str) -> bool | None:
    value = given.get(name)
    if not value:
        return None
    return _checked(value, name, _ON + _OFF) in _ON


def _read_cache_dir(given: Mapping[str, str]) -> pathlib.Path:
    if given.get(CACHE):
        return pathlib.Path(given[CACHE])
    home = given.get("HOME") or str(pathlib.Path.home())
    return pathlib.Path(given.get("XDG_CACHE_HOME") or f"{home}/.cache") / "tf-amp"


def switches_set(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the variables, as NAME=value, that switch mixed precision on or off."""
    variables = os.environ if environ is None else environ
    names = (SWITCH, REWRITE_SWITCH)
    return tuple(f"{name}={variables[name]}" for name in names if variables.get(name))


def _read_enabled(given: Mapping[str, str]) -> bool | None:
    """Tell what the two switches say, which may not be opposite things."""
    whole, rewrite = _switch_state(given), _read_flag(given, REWRITE_SWITCH)
    if None not in (whole, rewrite) and whole != rewrite:
        raise ConfigError(
            f"{SWITCH}={given[SWITCH]} and {REWRITE_SWITCH}={given[REWRITE_SWITCH]} "
            "contradict each other; set one of them."
        )
    return rewrite if whole is None else whole


def _switch_state(given: Mapping[str, str]) -> bool | None:
    value = given.get(SWITCH)
    if not value:
        return None
    return _checked(value, SWITCH, _ON + LOW_DTYPES + _OFF) not in _OFF


def _read_dtype(given: Mapping[str, str]) -> str | None:
    """Return the 16-bit type, which the switch and TF_AMP_DTYPE may both name."""
    switch = given.get(SWITCH, "").lower()
    chosen = _read(given, DTYPE, checked_dtype, None)
    if switch not in LOW_DTYPES:
        return chosen
    if chosen not in (None, switch):
        raise ConfigError(
            f"{SWITCH}={given[SWITCH]} and {DTYPE}={given[DTYPE]} contradict each "
            "other: they name two different types; set one of them."
        )
    return switch
