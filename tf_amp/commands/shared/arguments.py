"""Options that several commands have, and values as given on a command line."""

from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Callable
from typing import Any

from tf_amp.config import amp_config
from tf_amp.config import setting_values as values
from tf_amp.config.exclusion import checked_patterns
from tf_amp.errors import AmpError, ConfigError, ScriptMissingError

# A year: what is longer is a mistake, and no timer of the system takes it.
MOST_SECONDS = 365 * 86400.0
# Options that make sense for SavedModels only; no command has to have all of them.
_OF_MODELS = ("data", "signature", "batch", "measure")


def add_rows_to(parser: argparse.ArgumentParser, option: str, count: int) -> None:
    """Add how many rows are printed to a parser; None stands for all of them."""
    parser.add_argument(
        option,
        type=_rows_from_text,
        default=count,
        metavar="N",
        help=f"rows to print ({count}); 0 for all",
    )


def add_rewriting_to(parser: argparse.ArgumentParser, levels: str) -> None:
    """Add the options that say how graphs are rewritten to a parser."""
    add = parser.add_argument
    add("--dtype", choices=amp_config.LOW_DTYPES, help="this device's by default")
    add_checked_to(
        parser, "--opt-level", amp_config.checked_level, metavar="LEVEL", help=levels
    )
    add_profile_to(parser, help="plan for this device")
    add_checked_to(
        parser,
        "--exclude",
        checked_patterns,
        action="append",
        default=[],
        metavar="REGEX|@FILE",
        help="operations with such names stay float32; @FILE reads a list",
    )


def add_profile_to(parser: argparse.ArgumentParser, **given: Any) -> None:
    """Add the profile of a device, which there has to be, to a parser."""

    def check(value: str, name: str) -> None:
        from grappler_pass.costs import DeviceProfile

        DeviceProfile.load(values.checked_profile(value, name))

    add_checked_to(parser, "--device-profile", check, metavar="NAME", **given)


def check_file(value: str, name: str) -> None:
    """Refuse the path of a file that there is not."""
    if not pathlib.Path(value).expanduser().is_file():
        raise ConfigError(f"{name}: there is no file {value}.")


def add_checked_to(
    parser: argparse.ArgumentParser,
    option: str,
    check: Callable[[str, str], object],
    **given: Any,
) -> None:
    """Add an option whose value stays text, and is refused as a setting would be.

    So what is wrong is said of the option, before anything is imported or run. The
    check gets the value and the option's name.
    """

    def text_from(text: str) -> str:
        try:
            check(text, option)
        except AmpError as error:
            said = str(error).removeprefix(f"{option}: ")
            raise argparse.ArgumentTypeError(said) from error
        return text

    parser.add_argument(option, type=text_from, **given)


def environment_from(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the settings for rewrites as variables; None: not given."""
    return {
        amp_config.DTYPE: options.dtype,
        amp_config.OPT_LEVEL: options.opt_level,
        amp_config.DEVICE_PROFILE: options.device_profile,
        amp_config.EXCLUDE: " ".join(options.exclude) if options.exclude else None,
    }


def count_from_text(text: str) -> int:
    """Return a number of 1 or more, as the `type` of an option."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"received {text!r}; wanted is 1 or more")
    return int(text)


def _rows_from_text(text: str) -> int | None:
    """Return a number of rows, as the `type` of an option; None: 0, for all of them."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"received {text!r}; wanted is 0 or more")
    return int(text) or None


def seconds_from_text(text: str) -> float:
    """Return seconds up to a year, as the `type` of an option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(
            f"received {text!r}; wanted are seconds, a number greater than 0 and at "
            f"most {MOST_SECONDS:.0f}"
        )
    return value


def add_batch_to(parser: argparse.ArgumentParser) -> None:
    """Add the size of a batch that a stored model leaves open to a parser."""
    parser.add_argument(
        "--batch",
        type=count_from_text,
        metavar="N",
        help="plan for this size where a model leaves the first one open",
    )


def add_model_to(parser: argparse.ArgumentParser, *, data: str | None = None) -> None:
    """Add the model or script, and what belongs to one of them, to a parser.

    `data` says what `--data` holds; None for a command that takes none.
    """
    parser.add_argument(
        "model",
        type=pathlib.Path,
        metavar="SAVED_MODEL|SCRIPT",
        help="folder of a SavedModel, or a script, which runs in float32",
    )
    if data is not None:
        parser.add_argument("--data", type=pathlib.Path, metavar="NPZ", help=data)
    parser.add_argument("--signature", help="only this one of a SavedModel")
    add_limit_to(parser)


def add_limit_to(parser: argparse.ArgumentParser) -> None:
    """Add the time of a script to a parser, and what is said of its arguments."""
    parser.add_argument(
        "--seconds",
        type=seconds_from_text,
        metavar="N",
        help="stop the script after so long",
    )
    parser.epilog = "What follows `--` are the script's own arguments."


def check_model(options: argparse.Namespace) -> None:
    """Refuse options that make no sense together, or of the other kind of source."""
    if not options.model.exists():
        raise ScriptMissingError(f"{options.model}: no such SavedModel or script.")
    if options.model.is_dir():
        if options.script_arguments or options.seconds is not None:
            raise ConfigError(
                f"{options.model} is a folder, so a SavedModel: --seconds and "
                "arguments belong to scripts."
            )
        return
    given = [f"--{name}" for name in _OF_MODELS if getattr(options, name, None)]
    if given:
        raise ConfigError(
            f"{options.model} is a script: {' and '.join(given)} can be given with a "
            "SavedModel only."
        )
