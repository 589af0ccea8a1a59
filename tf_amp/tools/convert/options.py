"""What a conversion is asked for; refuses what is unknown or contradicts itself."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Any

from tf_amp.config.amp_config import AmpConfig, checked_dtype, checked_level
from tf_amp.config.exclusion import checked_patterns
from tf_amp.errors import ConfigError, ScriptMissingError
from tf_amp.tracing.in_force import current_config

MIXED, FLOAT32 = "mixed", "float32"
WEIGHTS = (FLOAT32, "low")
_TARGETS = (MIXED, FLOAT32)


@dataclasses.dataclass(frozen=True)
class Options:
    """What the user wants.

    Attributes:
      config: dtype, level, lists and exclusions, as of `enable`.
      device_profile: name or path of one to plan for; None: the present device.
      keep_io: whether signatures keep their dtypes; else float32 goes to 16 bits.
      weights: "float32", or "low" for constants and variables in 16 bits.
      calibration: an .npz file of inputs, by which ranges are found; None: none.
      verify: whether the result is run beside the given model.
      overwrite: whether what is there already may be replaced.
      allow_lambda: whether Python code within a .keras file may be run.
      batch: size to plan for where the model leaves it open; None: a guess.
      to: "mixed", or "float32" to go back.
      new_patterns: those of the exclusions that were given here.
    """

    config: AmpConfig
    device_profile: str | None = None
    keep_io: bool = True
    weights: str = FLOAT32
    calibration: pathlib.Path | None = None
    verify: bool = False
    overwrite: bool = False
    allow_lambda: bool = False
    batch: int | None = None
    to: str = MIXED
    new_patterns: tuple[str, ...] = ()


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
    options = Options(
        _config(dtype, device_profile, opt_level, exclude), device_profile, **others
    )
    options = dataclasses.replace(options, new_patterns=checked_patterns(exclude))
    for name, value, allowed in (
        ("weights", options.weights, WEIGHTS),
        ("to", options.to, _TARGETS),
    ):
        if value not in allowed:
            raise ConfigError(
                f"{name}: received {value!r}; allowed are {', '.join(allowed)}."
            )
    if options.batch is not None and options.batch < 1:
        raise ConfigError(f"batch: received {options.batch}; at least 1 is needed.")
    if options.calibration is not None and not options.calibration.is_file():
        raise ScriptMissingError(
            f"calibration: there is no file {options.calibration}."
        )
    if options.to == FLOAT32 and _is_for_mixing(options):
        raise ConfigError(
            "to='float32' takes a converted model back; weights='low', calibration, "
            "verify and keep_io=False belong to conversions to mixed precision."
        )
    return options


def _is_for_mixing(options: Options) -> bool:
    is_low = options.weights == "low" or not options.keep_io
    return is_low or options.verify or options.calibration is not None


def _config(
    dtype: str | None,
    device_profile: str | None,
    opt_level: str | None,
    exclude: Iterable[str],
) -> AmpConfig:
    base = current_config() or AmpConfig.from_env()
    changes: dict[str, Any] = {"exclude": (*base.exclude, *checked_patterns(exclude))}
    if dtype is not None:
        changes["dtype"] = checked_dtype(dtype)
    if opt_level is not None:
        changes["opt_level"] = checked_level(opt_level)
    if device_profile is not None:
        changes["device_profile"] = device_profile
    return dataclasses.replace(base, **changes)
