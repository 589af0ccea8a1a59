"""What a conversion is asked for, checked; and one under way, with its report."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Iterable
from typing import Any

from tf_amp.config.amp_config import AmpConfig
from tf_amp.config.setting_values import checked_patterns, checked_word
from tf_amp.errors import ConfigError, ScriptMissingError
from tf_amp.tools.choice import Choice
from tf_amp.tools.convert.files.stored_models import size_of
from tf_amp.tools.convert.report import ConversionReport
from tf_amp.tracing.stamps import current_config

MIXED, FLOAT32 = "mixed", "float32"
_ALLOWED = {"weights": (FLOAT32, "low"), "to": (MIXED, FLOAT32)}


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user wants; names and meanings are those of `tf_amp.convert`.

    Attributes:
      choice: the settings that were given.
      config: those in force, with the choice in it.
    """

    choice: Choice
    config: AmpConfig
    keep_io: bool = True
    weights: str = FLOAT32
    calibration: pathlib.Path | None = None
    verify: bool = False
    batch: int | None = None
    to: str = MIXED


def options_from(
    *,
    dtype: str | None = None,
    device_profile: str | None = None,
    opt_level: str | None = None,
    exclude: Iterable[str] = (),
    **others: Any,
) -> Options:
    """Return checked options; what is not given comes from the environment.

    Raises:
      ConfigError: a value is unknown, or two options contradict each other.
      ScriptMissingError: there is no file of calibration data.
    """
    in_force = current_config() or AmpConfig.from_env()
    choice = Choice(dtype, opt_level, device_profile, checked_patterns(exclude))
    options = Options(choice, choice.applied_to(in_force), **others)
    for name, allowed in _ALLOWED.items():
        checked_word(getattr(options, name), name, allowed, fold=str)
    if options.batch is not None and options.batch < 1:
        raise ConfigError(f"batch: received {options.batch}; at least 1 is needed.")
    if options.calibration is not None and not options.calibration.is_file():
        raise ScriptMissingError(
            f"calibration: there is no file {options.calibration}."
        )
    is_low = options.weights == "low" or not options.keep_io
    is_for_mixing = is_low or options.verify or options.calibration is not None
    if options.to == FLOAT32 and is_for_mixing:
        raise ConfigError(
            "--to float32 (to='float32') takes a converted model back; --weights low, "
            "--calibration, --verify and --no-keep-io (keep_io=False) belong to "
            "conversions to mixed precision."
        )
    return options


@dataclasses.dataclass(frozen=True)
class Job:
    """What is converted, to what, and how.

    Source and target are as the user named them; what is read is the source, or what a
    Keras file was exported to. The work began at `begin`, in seconds of
    `time.perf_counter`.
    """

    source: pathlib.Path
    given: pathlib.Path
    target: pathlib.Path
    kind: str
    options: Options
    begin: float

    def report(self, written: pathlib.Path, **found: Any) -> ConversionReport:
        """Return the report of what is `written`, with fields that were `found`."""
        return ConversionReport(
            source=str(self.source),
            target=str(self.target),
            kind=self.kind,
            to=self.options.to,
            opt_level=self.options.config.opt_level,
            weights=self.options.weights,
            bytes_before=size_of(self.given),
            bytes_after=size_of(written),
            seconds=time.perf_counter() - self.begin,
            **found,
        )
