"""Options that several commands have, and values as given on a command line."""

from __future__ import annotations

import argparse
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from tf_amp.config.amp_config import OPTIONS, SETTINGS, text_of
from tf_amp.errors import AmpError, ConfigError, ScriptMissingError

# A year: what is longer is a mistake, and no timer of the system takes it.
MOST_SECONDS = 365 * 86400.0
# Settings that say how graphs are rewritten.
REWRITING = ("dtype", "opt_level", "device_profile", "exclude")
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
    for name in REWRITING:
        changed = {"help": levels} if name == "opt_level" else {}
        add_setting_to(parser, name, **changed)


def add_setting_to(parser: argparse.ArgumentParser, name: str, **changed: Any) -> None:
    """Add the option of a setting to a parser; `changed` differs in this command.

    The value stays text, as a variable has it, and is checked as a variable is.
    """
    row = SETTINGS[name]
    option = {**OPTIONS[name], **changed}
    if "choices" in option or option.get("action") == "store_true":
        parser.add_argument(row.option, **option)
    else:
        add_checked_to(parser, row.option, _CHECKS.get(name, row.read), **option)


def _check_profile(value: str, name: str) -> None:
    from grappler_pass.costs import DeviceProfile

    DeviceProfile.load(SETTINGS["device_profile"].read(value, name))


def check_file(value: str, name: str) -> None:
    """Refuse the path of a file that there is not."""
    if not pathlib.Path(value).expanduser().is_file():
        raise ConfigError(f"{name}: there is no file {value}.")


# Settings whose files have to be there when they are given as options.
_CHECKS: Mapping[str, Callable[[str, str], object]] = {
    "device_profile": _check_profile,
    "ranges": check_file,
}


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


def environment_from(options: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the settings that are given as options."""
    given = {
        row.variable: getattr(options, row.option[2:].replace("-", "_"), None)
        for row in SETTINGS.values()
    }
    return {name: text_of(value) for name, value in given.items() if value}


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
