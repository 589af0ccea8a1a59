"""The methods that are held against each other, as a command line names them.

Behind `tf-amp:` stand settings of its own, joined by +: a level, then variables without
their TF_AMP_, such as `tf-amp:O2+TUNE=off`. Each process gets an environment to match.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tf_amp.config.amp_config import (
    BENCH_BATCH,
    CACHE,
    DEFAULT_LEVEL,
    LEVELS,
    OPT_LEVEL,
    OWN_NAMES,
    OWN_PREFIX,
    SWITCH_PREFIX,
    AmpConfig,
)
from tf_amp.config.list_edits import PREFIX
from tf_amp.errors import ConfigError
from tf_amp.tools.bench.job import Job, Run

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
_PREFIXES = (OWN_PREFIX, SWITCH_PREFIX, PREFIX)
_ALWAYS = {"TF_CPP_MIN_LOG_LEVEL": "2"}


def methods_from_text(text: str) -> tuple[str, ...]:
    """Return checked methods from a list, with float32 and its repetition in front."""
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
        names = sorted(name.removeprefix(OWN_PREFIX) for name in _SETTINGS)
        raise ConfigError(
            f"--methods: received {text!r}; allowed are {', '.join(METHODS)}, and "
            f"{OURS}:LEVEL+NAME=VALUE, both or one of them, with a level of "
            f"{', '.join(LEVELS)} and names of {', '.join(names)}."
        )
    try:
        AmpConfig.from_env(settings)
    except ConfigError as error:
        raise ConfigError(f"--methods: received {text!r}; {error}") from error
    return method


def settings_of(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that are tf-amp's, in which methods differ, sorted."""
    return tuple(
        sorted(
            (name, value)
            for name, value in environ.items()
            if name.startswith(_PREFIXES) and name not in (CACHE, BENCH_BATCH)
        )
    )


def without_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are not tf-amp's."""
    return {n: v for n, v in environ.items() if not n.startswith(_PREFIXES)}


def environment_of(
    job: Job, run: Run, environ: Mapping[str, str], cache: str
) -> dict[str, str]:
    """Return the variables of a run: the user's, but only tf-amp gets tf-amp's.

    Those of the method itself are set in the process. `cache` is a folder for what
    steps show; if warm, the user's own.
    """
    batch = {} if run.batch is None else {BENCH_BATCH: str(run.batch)}
    cache = environ.get(CACHE, "") if job.is_warm else cache
    return {
        **_ALWAYS,
        **without_settings(environ),
        **batch,
        **({CACHE: cache} if cache else {}),
        **(dict(job.settings) if is_ours(run.method) else {}),
    }
