"""The configuration: one frozen value, read once from the environment.

Decides what the user asked for, and refuses what is unknown or contradicts itself.
What the answer means for a device or a graph is decided elsewhere. Beside
`arithmetic_variables` nothing else reads the environment.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from grappler_pass.fusions import RULES
from tf_amp.config import list_edits
from tf_amp.config import setting_values as values
from tf_amp.config.exclusion import patterns_from_text
from tf_amp.config.list_edits import ListEdit
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import loss_scale_from_words, words_from_loss_scale
from tf_amp.errors import ConfigError

SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE_SWITCH = f"{SWITCH}_GRAPH_REWRITE"
LOSS_SCALING_SWITCH = f"{SWITCH}_LOSS_SCALING"
SWITCHES = (SWITCH, REWRITE_SWITCH, LOSS_SCALING_SWITCH)
SWITCH_PREFIX = "TF_ENABLE_AUTO_MIXED"
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
FUSE = "TF_AMP_FUSE"
LOSS_SCALE = "TF_AMP_LOSS_SCALE"
RANGES = "TF_AMP_RANGES"
VERBOSE = "TF_AMP_VERBOSE"
CHECK = "TF_AMP_CHECK"
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
    FUSE,
    LOSS_SCALE,
    RANGES,
    VERBOSE,
    CHECK,
)
# Gives a script its batch size; no setting.
BENCH_BATCH = "TF_AMP_BENCH_BATCH"
# Whose values are paths, or may be.
PLACES = (DEVICE_PROFILE, LOG, CACHE, RANGES)

LOW_DTYPES = ("bfloat16", "float16")
DTYPES = ("float32", *LOW_DTYPES)
# The optimization levels: how much of a graph goes to 16 bits. A 16-bit type beside O0
# is no contradiction: so a program that names its type is run once in float32.
FLOAT32_LEVEL, DEFAULT_LEVEL = "O0", "O1"
LEVELS = {
    FLOAT32_LEVEL: "float32: every graph stays as it is",
    DEFAULT_LEVEL: "16 bits where that is predicted to be faster",
    "O2": "everything eligible, whatever it costs",
    "O3": "everything that has a 16-bit kernel and may be in 16 bits",
}
DEFAULT_TIE = 0.01

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class AmpConfig:
    """What the user asked for.

    Attributes:
      enabled: whether graphs are rewritten; None where nothing was said.
      dtype: "bfloat16" or "float16"; None leaves the choice to the device.
      opt_level: one of `LEVELS`.
      device_profile: name or path of the profile to plan for; None means this device.
      log_dir: where each graph is written before and after, with its plan.
      strict: whether a rewrite that fails raises.
      cache_dir: where calibrated profiles and verdicts are kept; None means nowhere.
      list_edits: changes to the op lists, in the order given.
      exclude: regular expressions; operations with such a name, and their gradients,
        stay float32.
      tune: "on" or "off": whether the program's own steps decide what is close, and
        correct prices, or prices alone decide.
      tie: share of its seconds, 0 to 1, by which an operation may be slower in 16 bits
        if its results take half the memory.
      fuse: names of the rewrites beside types that graphs go through.
      loss_scale: what losses are scaled by, whatever the dtype; None leaves the choice
        to the dtype.
      ranges: file of the ranges that tensors were seen to keep to; operations whose
        tensors leave the safe range stay float32.
      verbose: whether the process says on stderr what has become of its graphs.
      check: whether 16-bit kernels of kinds that were found wrong are run, and held
        against float32's, before a plan first uses them.
    """

    enabled: bool | None = None
    dtype: str | None = None
    opt_level: str = DEFAULT_LEVEL
    device_profile: str | None = None
    log_dir: pathlib.Path | None = None
    strict: bool = False
    cache_dir: pathlib.Path | None = None
    list_edits: tuple[ListEdit, ...] = ()
    exclude: tuple[str, ...] = ()
    tune: str = values.DEFAULT_TUNE
    tie: float = DEFAULT_TIE
    fuse: tuple[str, ...] = RULES
    loss_scale: LossScale | None = None
    ranges: pathlib.Path | None = None
    verbose: bool = True
    check: bool = True

    @property
    def rewrites(self) -> bool:
        """Whether graphs are changed at all."""
        return self.opt_level != FLOAT32_LEVEL

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
        own = {name for name in given if name.startswith(OWN_PREFIX)}
        values.refuse_unknown(own - {BENCH_BATCH}, OWN_NAMES)
        values.refuse_unknown(
            (n for n in given if n.startswith(SWITCH_PREFIX)), SWITCHES
        )
        return cls(
            enabled=_read_enabled(given),
            dtype=_read_dtype(given),
            opt_level=_read(given, OPT_LEVEL, checked_level, DEFAULT_LEVEL),
            device_profile=_read(given, DEVICE_PROFILE, values.checked_profile, None),
            log_dir=_read(given, LOG, values.checked_path, None),
            strict=bool(_read_flag(given, STRICT)),
            cache_dir=_read_cache_dir(given),
            list_edits=list_edits.edits_from_env(given),
            exclude=_read(given, EXCLUDE, patterns_from_text, ()),
            tune=_read(given, TUNE, values.checked_tune, values.DEFAULT_TUNE),
            tie=_read(given, TIE, values.checked_tie, DEFAULT_TIE),
            fuse=_read(given, FUSE, values.checked_fusions, RULES),
            loss_scale=_read_loss_scale(given),
            ranges=_read(given, RANGES, values.checked_path, None),
            verbose=_read_flag(given, VERBOSE) is not False,
            check=_read_flag(given, CHECK) is not False,
        )

    def to_env(self) -> dict[str, str]:
        """Return variables that `from_env` reads back equal."""
        flags = {True: "1", False: "0", None: ""}
        variables = {
            SWITCH: flags[self.enabled],
            DTYPE: self.dtype or "",
            OPT_LEVEL: self.opt_level,
            DEVICE_PROFILE: self.device_profile or "",
            LOG: str(self.log_dir or ""),
            STRICT: flags[self.strict],
            CACHE: str(self.cache_dir or ""),
            EXCLUDE: " ".join(self.exclude),
            TUNE: self.tune,
            TIE: repr(self.tie),
            FUSE: " ".join(self.fuse) or "off",
            LOSS_SCALE: _words_if_any(self.loss_scale),
            RANGES: str(self.ranges or ""),
            VERBOSE: "" if self.verbose else "0",
            CHECK: "" if self.check else "off",
            **list_edits.env_from_edits(self.list_edits),
        }
        return {name: value for name, value in variables.items() if value}


def _words_if_any(loss_scale: LossScale | None) -> str:
    return "" if loss_scale is None else words_from_loss_scale(loss_scale)


def checked_dtype(value: object, name: str = "dtype") -> str:
    """Return the 16-bit type's name, as of `tf.bfloat16`, or raise ConfigError."""
    own = getattr(value, "name", None)
    return values.checked_word(own if own in LOW_DTYPES else value, name, LOW_DTYPES)


def checked_any_dtype(value: object, name: str) -> str:
    """Return the name of float32 or of a 16-bit type, or raise ConfigError."""
    return values.checked_word(value, name, DTYPES)


def checked_level(value: object, name: str = "opt_level") -> str:
    """Return the level's name, or raise ConfigError."""
    return values.checked_word(value, name, tuple(LEVELS), str.upper)


def _read(
    given: Mapping[str, str], name: str, parse: Callable[..., _T], default: _T
) -> _T:
    value = given.get(name)
    if not value:
        return default
    return parse(value, name)


def _read_flag(given: Mapping[str, str], name: str) -> bool | None:
    value = given.get(name)
    if not value:
        return None
    return values.checked_word(value, name, values.ON + values.OFF) in values.ON


def _read_cache_dir(given: Mapping[str, str]) -> pathlib.Path | None:
    if given.get(CACHE):
        return values.checked_path(given[CACHE], CACHE)
    if given.get("XDG_CACHE_HOME"):
        return pathlib.Path(given["XDG_CACHE_HOME"]) / "tf-amp"
    try:
        home = given.get("HOME") or pathlib.Path.home()
    except RuntimeError:
        _warn_of_no_home()
        return None
    return pathlib.Path(home) / ".cache" / "tf-amp"


@functools.cache
def _warn_of_no_home() -> None:
    # absl's logger, without absl, which a broken installation may lack.
    logging.getLogger("absl").warning(
        "This user has no home folder: nothing that is measured is kept. %s names a "
        "folder for it.",
        CACHE,
    )


def switches_set() -> tuple[str, ...]:
    """Return the variables, as NAME=value, that switch mixed precision on or off."""
    return _given_of((SWITCH, REWRITE_SWITCH))


def settings_set() -> tuple[str, ...]:
    """Return the variables, as NAME=value, that bear on what is done where it is on."""
    edits = sorted(n for n in os.environ if n.startswith(list_edits.PREFIX))
    return _given_of((LOSS_SCALING_SWITCH, *sorted({*OWN_NAMES} - {CACHE}), *edits))


def _given_of(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))


def _read_enabled(given: Mapping[str, str]) -> bool | None:
    """Return what the two switches say, which may not be opposite things."""
    whole, rewrite = _switch_state(given), _read_flag(given, REWRITE_SWITCH)
    if None not in (whole, rewrite) and whole != rewrite:
        raise _contradiction(given, SWITCH, REWRITE_SWITCH)
    return rewrite if whole is None else whole


def _switch_state(given: Mapping[str, str]) -> bool | None:
    value = given.get(SWITCH)
    if not value:
        return None
    allowed = values.ON + LOW_DTYPES + values.OFF
    return values.checked_word(value, SWITCH, allowed) not in values.OFF


def _read_dtype(given: Mapping[str, str]) -> str | None:
    """Return the 16-bit type, which the switch and TF_AMP_DTYPE may both name."""
    switch = given.get(SWITCH, "").lower()
    chosen = _read(given, DTYPE, checked_dtype, None)
    if switch not in LOW_DTYPES:
        return chosen
    if chosen not in (None, switch):
        raise _contradiction(given, SWITCH, DTYPE)
    return switch


def _read_loss_scale(given: Mapping[str, str]) -> LossScale | None:
    """Return what losses are scaled by; None leaves the choice to the type.

    The rewrite's switch alone is for programs that scale their losses themselves.
    """
    named = _read(given, LOSS_SCALE, loss_scale_from_words, None)
    scaling = _read_flag(given, LOSS_SCALING_SWITCH)
    if named is not None:
        if scaling not in (None, named.scales):
            raise _contradiction(given, LOSS_SCALING_SWITCH, LOSS_SCALE)
        return named
    if scaling is None and _switch_state(given) is None and _read_enabled(given):
        scaling = False
    if scaling is None:
        return None
    return loss_scale_from_words("dynamic" if scaling else "none")


def _contradiction(given: Mapping[str, str], first: str, second: str) -> ConfigError:
    return ConfigError(
        f"{first}={given[first]} and {second}={given[second]} contradict each other; "
        "set one of them."
    )
