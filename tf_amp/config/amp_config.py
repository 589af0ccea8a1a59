"""The settings: one table of their names, variables and defaults.

`AmpConfig` is the table, a row for each field, and the configuration itself: one frozen
value, read once from the environment. `enable`, scopes, the options of commands and
docs/settings.md follow it. Decides what the user asked for, and refuses what is unknown
or contradicts itself. What the answer means for a device or a graph is decided
elsewhere. But for `devices`, of TensorFlow's own variables, nothing else reads the
environment.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from grappler_pass.fusions import RULES
from tf_amp.config import setting_values as values
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.config.loss_scales.words import (
    ALLOWED_WORDS,
    loss_scale_from_words,
    words_from_loss_scale,
)
from tf_amp.config.setting_values import ListEdit
from tf_amp.errors import ConfigError, guess
from tf_amp.message_codes import Code

SWITCH = "TF_ENABLE_AUTO_MIXED_PRECISION"
REWRITE_SWITCH = f"{SWITCH}_GRAPH_REWRITE"
LOSS_SCALING_SWITCH = f"{SWITCH}_LOSS_SCALING"
SWITCHES = (SWITCH, REWRITE_SWITCH, LOSS_SCALING_SWITCH)
SWITCH_PREFIX = "TF_ENABLE_AUTO_MIXED"
OWN_PREFIX = "TF_AMP_"
# Variables that others name.
OPT_LEVEL = "TF_AMP_OPT_LEVEL"
DTYPE = "TF_AMP_DTYPE"
DEVICE_PROFILE = "TF_AMP_DEVICE_PROFILE"
LOG = "TF_AMP_LOG"
STRICT = "TF_AMP_STRICT"
CACHE = "TF_AMP_CACHE"
TUNE = "TF_AMP_TUNE"
LOSS_SCALE = "TF_AMP_LOSS_SCALE"
VERBOSE = "TF_AMP_VERBOSE"
CHECK = "TF_AMP_CHECK"
MEMORY = "TF_AMP_MEMORY"
# As `difflib` counts: the share of letters that two names have in common.
_FEW_LETTERS = 0.85
# A file in the cache folder, once a line has said on this machine how to hide it.
HIDING_IS_SAID = "verbose_hint_given"
# Gives a script its batch size; no setting.
BENCH_BATCH = "TF_AMP_BENCH_BATCH"

# Words that arguments take, for editors and type checkers.
LowDtype = Literal["bfloat16", "float16"]
Dtype = Literal["float32", "bfloat16", "float16"]
OptLevel = Literal["O0", "O1", "O2", "O3"]
OnOff = Literal["on", "off"]
Memory = Literal["speed", "save"]
Compile = Literal["off", "clusters", "on"]
COMPILE_WORDS: tuple[Compile, ...] = get_args(Compile)
LOW_DTYPES: tuple[LowDtype, ...] = get_args(LowDtype)
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
SPEED, SAVE = MEMORY_WORDS = get_args(Memory)
# The optimization levels: how much of a graph goes to 16 bits. A 16-bit type beside O0
# is no contradiction: so a program that names its type is run once in float32.
FLOAT32_LEVEL: OptLevel = "O0"
DEFAULT_LEVEL: OptLevel = "O1"
LEVELS: dict[OptLevel, str] = {
    FLOAT32_LEVEL: "float32: every graph stays unchanged",
    DEFAULT_LEVEL: "16 bits where that is predicted to be faster",
    "O2": "everything eligible, whatever it costs",
    "O3": "everything that has a 16-bit kernel and may be in 16 bits",
}
_ROW = "setting"


def checked_dtype(value: object, name: str = "dtype") -> LowDtype:
    """Return the 16-bit type's name, as of `tf.bfloat16`, or raise ConfigError."""
    own = getattr(value, "name", None)
    return values.checked_word(own if own in LOW_DTYPES else value, name, LOW_DTYPES)


def checked_any_dtype(value: object, name: str) -> Dtype:
    """Return the name of float32 or of a 16-bit type, or raise ConfigError."""
    return values.checked_word(value, name, DTYPES)


def checked_level(value: object, name: str = "opt_level") -> OptLevel:
    """Return the level's name, or raise ConfigError."""
    return values.checked_word(value, name, tuple(LEVELS), str.upper)


def checked_memory(value: object, name: str = "memory") -> Memory:
    """Return "speed" or "save", or raise ConfigError."""
    return values.checked_word(value, name, MEMORY_WORDS)


def checked_compile(value: object, name: str = "compile") -> Compile:
    """Return "off", "clusters" or "on"."""
    return values.checked_word(value, name, COMPILE_WORDS)


def text_of(value: object) -> str:
    """Return a value as text for a variable; empty: the variable is left unset."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "1" if value else "0"
    return " ".join(value) if isinstance(value, (tuple, list)) else str(value)


class Setting(NamedTuple):
    """A row of the table: a field of `AmpConfig` that one variable sets.

    `check` takes a value that a program gives and `read` the text of the variable, both
    with the name to call it by in an error; they return what the field holds, or raise
    ConfigError. What `write` returns of that is read back equal.
    """

    variable: str
    check: Callable[[Any, str], Any]
    read: Callable[[str, str], Any]
    write: Callable[[Any], str]

    @property
    def option(self) -> str:
        """The option of commands, such as --opt-level."""
        return f"--{self.variable.removeprefix(OWN_PREFIX).lower().replace('_', '-')}"


def _row(
    default: Any,
    check: Callable[[Any, str], Any],
    read: Callable[[str, str], Any] | None = None,
    write: Callable[[Any], str] = text_of,
) -> Any:
    row = {_ROW: (check, read or check, write)}
    return dataclasses.field(default=default, metadata=row)


def _flag(default: bool) -> Any:
    return _row(default, values.checked_bool, values.flag_from_text)


@dataclasses.dataclass(frozen=True)
class AmpConfig:
    """The value of every setting.

    Attributes:
      enabled: whether graphs are rewritten; None where nothing was said.
      opt_level: one of `LEVELS`.
      dtype: "bfloat16" or "float16"; None leaves the choice to the device.
      device_profile: name or path of the profile to plan for; None means this device.
      log_dir: where each graph is written before and after, with its plan.
      strict: whether a rewrite that fails raises.
      cache_dir: where calibrated profiles and verdicts are kept; None means nowhere.
      exclude: regular expressions; operations with such a name, and their gradients,
        stay float32.
      tune: "on" or "off": whether the program's own steps decide what is close, and
        correct prices, or prices alone decide.
      tie: share of its seconds, 0 to 1, by which an operation may be slower in 16 bits
        if its results take half the memory.
      fuse: names of the fusions that graphs go through.
      loss_scale: what losses are scaled by, whatever the dtype; None leaves the choice
        to the dtype.
      ranges: file of the ranges that tensors were seen to keep to; operations whose
        tensors leave the safe range stay float32.
      verbose: whether the process says on stderr what has become of its graphs.
      check: whether 16-bit kernels of kinds that were found wrong are run, and held
        against float32's, before a plan first uses them.
      memory: "save" if steps may take a little longer to hold less, else "speed".
      compile: whether the program's own steps may choose that XLA compiles parts of a
        function ("clusters"), or parts or all of it ("on"); or "off".
      list_edits: changes to the op lists, in the order given.
    """

    enabled: bool | None = None
    opt_level: OptLevel = _row(DEFAULT_LEVEL, checked_level)
    dtype: LowDtype | None = _row(None, checked_dtype)
    device_profile: str | None = _row(None, values.checked_profile)
    log_dir: pathlib.Path | None = _row(None, values.checked_path)
    strict: bool = _flag(False)
    cache_dir: pathlib.Path | None = _row(None, values.checked_path)
    exclude: tuple[str, ...] = _row(
        (), values.checked_exclusions, values.patterns_from_text
    )
    tune: str = _row("on", values.checked_tune)
    tie: float = _row(0.01, values.checked_tie)
    fuse: tuple[str, ...] = _row(
        RULES,
        values.checked_fusions,
        write=lambda fusions: " ".join(fusions) or "off",
    )
    loss_scale: LossScale | None = _row(
        None,
        loss_scale_from_words,
        write=lambda scale: "" if scale is None else words_from_loss_scale(scale),
    )
    ranges: pathlib.Path | None = _row(None, values.checked_path)
    verbose: bool = _flag(True)
    check: bool = _flag(True)
    memory: Memory = _row("speed", checked_memory)
    compile: Compile = _row("off", checked_compile)
    list_edits: tuple[ListEdit, ...] = ()

    @property
    def rewrites(self) -> bool:
        """True where graphs are changed at all."""
        return self.opt_level != FLOAT32_LEVEL

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> AmpConfig:
        """Read every setting from the environment's variables.

        Args:
          environ: names and values; the process's own environment by default, of which
            one line on stderr names each variable that is no setting.

        Raises:
          ConfigError: a value is unknown, or two variables contradict each other, or a
            name of `environ` is no setting; the message names them.
        """
        variables = os.environ if environ is None else environ
        texts = {name: value.strip() for name, value in variables.items()}
        if environ is None:
            say_unknown(texts)
        elif unknown := unknown_settings(n for n in texts if n.startswith(_PREFIXES)):
            raise ConfigError(next(iter(unknown.values())))
        settings = {
            name: row.read(texts[row.variable], row.variable)
            for name, row in SETTINGS.items()
            if texts.get(row.variable)
        }
        settings |= _said_by_switches(texts, settings)
        settings.setdefault("cache_dir", _default_cache_dir(texts))
        return cls(list_edits=values.edits_from_env(texts), **settings)

    def to_env(self) -> dict[str, str]:
        """Return variables that `from_env` reads back equal."""
        variables = {
            row.variable: row.write(getattr(self, name))
            for name, row in SETTINGS.items()
        }
        variables[SWITCH] = text_of(self.enabled)
        variables |= values.env_from_edits(self.list_edits)
        return {name: value for name, value in variables.items() if value}


# Rows by the names of fields, after which their variables are called.
SETTINGS: Mapping[str, Setting] = {
    field.name: Setting(
        f"{OWN_PREFIX}{field.name.removesuffix('_dir').upper()}", *field.metadata[_ROW]
    )
    for field in dataclasses.fields(AmpConfig)
    if _ROW in field.metadata
}
OWN_NAMES = tuple(row.variable for row in SETTINGS.values())
_KNOWN = (*SWITCHES, *OWN_NAMES, BENCH_BATCH, *values.LIST_VARIABLES)
_PREFIXES = (OWN_PREFIX, SWITCH_PREFIX, values.LIST_PREFIX)
_said: set[str] = set()
# Whose values are paths, or may be.
PLACES = tuple(
    row.variable
    for row in SETTINGS.values()
    if row.check in (values.checked_path, values.checked_profile)
)
# What `tf-amp` shows of settings that are options, as arguments of argparse; `run` has
# them all, in this order.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "dtype": {"choices": LOW_DTYPES, "help": "this device's by default"},
    "opt_level": {
        "metavar": "LEVEL",
        "help": "; ".join(f"{name} {summary}" for name, summary in LEVELS.items()),
    },
    "device_profile": {"metavar": "NAME", "help": "plan for this device"},
    "exclude": {
        "action": "append",
        "default": [],
        "metavar": "REGEX|@FILE",
        "help": "operations with such names stay float32; @FILE reads a list",
    },
    "log_dir": {"metavar": "DIR", "help": "write graphs and plans there"},
    "loss_scale": {
        "metavar": "SCALE",
        "help": f"{ALLOWED_WORDS}; by default as the type needs it",
    },
    "tune": {"help": "on (default) or off: whether own steps decide what is close"},
    "fuse": {"metavar": "RULES", "help": "on (default), off, or fusions"},
    "ranges": {"metavar": "FILE", "help": "what `tf-amp ranges` wrote"},
    "check": {"choices": ("on", "off"), "help": "whether kernels are checked first"},
    "memory": {
        "choices": MEMORY_WORDS,
        "help": "save: hold less, and take a little longer; default speed",
    },
    "compile": {
        "choices": COMPILE_WORDS,
        "help": "clusters: own steps decide whether XLA compiles parts of a step; "
        "on: or all of it",
    },
    "strict": {"action": "store_true", "help": "raise on failure"},
}


def checked_settings(**given: Any) -> dict[str, Any]:
    """Return fields of `AmpConfig` from what a program gives; None: it gives nothing.

    Args:
      **given: values by the names of fields; but `lists` for `list_edits`.

    Raises:
      ConfigError: a value is none of those allowed.
    """
    lists = given.pop("lists", None)
    settings = {
        name: SETTINGS[name].check(value, name)
        for name, value in given.items()
        if value is not None
    }
    if lists is not None:
        settings["list_edits"] = values.edits_from_mapping(lists)
    return settings


def with_settings(config: AmpConfig, settings: Mapping[str, Any]) -> AmpConfig:
    """Return a configuration with checked settings; exclusions add to its own."""
    exclude = (*config.exclude, *settings.get("exclude", ()))
    return dataclasses.replace(config, **{**settings, "exclude": exclude})


def unknown_settings(names: Iterable[str]) -> dict[str, str]:
    """Say of each variable that looks like a setting and is none what it may stand for.

    Those of a prefix of ours do, and those that differ from a setting in few letters.
    """
    return {
        name: f"{name} is no setting, and does nothing{guess(name, _KNOWN)}"
        for name in filter(_is_like_setting, sorted(set(names) - {*_KNOWN}))
    }


# Programs enable again and again, and their environment stays.
@functools.cache
def _is_like_setting(name: str) -> bool:
    if name.startswith(values.LIST_PREFIX):
        # TensorFlow has others that say other things.
        return name.endswith(("_ADD", "_REMOVE"))
    near = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=_FEW_LETTERS)
    return name.startswith(_PREFIXES) or bool(near)


def say_unknown(names: Iterable[str]) -> None:
    """Say once on stderr of each variable that looks like a setting, and is none."""
    is_hidden = os.environ.get(VERBOSE, "").strip().lower() in values.OFF
    for said in () if is_hidden else unknown_settings(names).values():
        if said not in _said:
            _said.add(said)
            Code.NO_SETTING.say(said)


def _default_cache_dir(texts: Mapping[str, str]) -> pathlib.Path | None:
    if texts.get("XDG_CACHE_HOME"):
        return pathlib.Path(texts["XDG_CACHE_HOME"]) / "tf-amp"
    try:
        home = texts.get("HOME") or pathlib.Path.home()
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
    return _assignments((SWITCH, REWRITE_SWITCH))


def settings_set() -> tuple[str, ...]:
    """Return the variables, as NAME=value, that bear on what is done where it is on."""
    edits = sorted(n for n in os.environ if n.startswith(values.LIST_PREFIX))
    return _assignments((LOSS_SCALING_SWITCH, *sorted({*OWN_NAMES} - {CACHE}), *edits))


def _assignments(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))


def _said_by_switches(
    texts: Mapping[str, str], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what the three switches say, and settings say of the same thing.

    That is whether graphs are rewritten, to which type, and the loss scale.

    Raises:
      ConfigError: two of them contradict each other.
    """

    def flag(name: str) -> bool | None:
        return values.flag_from_text(texts[name], name) if texts.get(name) else None

    def refuse(first: str, second: str) -> None:
        raise ConfigError(
            f"{first}={texts[first]} and {second}={texts[second]} contradict each "
            "other; set one of them."
        )

    word, whole = "", None
    if texts.get(SWITCH):
        allowed = values.ON + LOW_DTYPES + values.OFF
        word = values.checked_word(texts[SWITCH], SWITCH, allowed)
        whole = word not in values.OFF
    rewrite, scaling = flag(REWRITE_SWITCH), flag(LOSS_SCALING_SWITCH)
    if None not in (whole, rewrite) and whole != rewrite:
        refuse(SWITCH, REWRITE_SWITCH)
    enabled = rewrite if whole is None else whole
    dtype, loss_scale = settings.get("dtype"), settings.get("loss_scale")
    if word in LOW_DTYPES and dtype not in (None, word):
        refuse(SWITCH, DTYPE)
    if loss_scale is not None:
        if scaling not in (None, loss_scale.scales):
            refuse(LOSS_SCALING_SWITCH, LOSS_SCALE)
    elif scaling is not None:
        loss_scale = loss_scale_from_words("dynamic" if scaling else "none")
    elif whole is None and enabled:
        # The rewrite's switch alone is for programs that scale their losses themselves.
        loss_scale = loss_scale_from_words("none")
    dtype = word if word in LOW_DTYPES else dtype
    return {"enabled": enabled, "dtype": dtype, "loss_scale": loss_scale}
