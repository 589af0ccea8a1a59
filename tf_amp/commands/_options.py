"""The options of commands, and which of them make sense together.

What is wrong with a value is said of the option, before anything is imported or run.
"""

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


class Options:
    """The options of a command, which it declares by a method for each kind."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        """Add options to the parser of a command."""
        self.parser = parser
        self.add = parser.add_argument

    def flag(self, *names: str, help: str, **more: Any) -> None:
        """Add an option without a value."""
        self.add(*names, action="store_true", help=help, **more)

    def path(self, *names: str, metavar: str, help: str, **more: Any) -> None:
        """Add a path."""
        self.add(*names, type=pathlib.Path, metavar=metavar, help=help, **more)

    def seconds(self, name: str, help: str, default: float | None = None) -> None:
        """Add a number of seconds, up to a year."""

        def seconds_from(text: str) -> float:
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not 0.0 < value <= MOST_SECONDS:
                raise argparse.ArgumentTypeError(
                    f"received {text!r}; wanted are seconds, a number greater than 0 "
                    f"and at most {MOST_SECONDS:.0f}"
                )
            return value

        self.add(name, type=seconds_from, metavar="N", help=help, default=default)

    def rows(self, name: str, default: int) -> None:
        """Add how many rows are printed; 0 becomes None, for all of them."""
        said = f"rows to print ({default}); 0 for all"
        self.add(
            name,
            type=lambda text: _whole_number(text, 0) or None,
            metavar="N",
            help=said,
            default=default,
        )

    def batch(self) -> None:
        """Add the size of a batch that a stored model leaves open."""
        said = "plan for this size where a model leaves the first one open"
        self.add(
            "--batch", type=lambda text: _whole_number(text, 1), metavar="N", help=said
        )

    def checked(
        self, name: str, check: Callable[[str, str], object], **more: Any
    ) -> None:
        """Add an option whose value stays text, and is refused as a setting would be.

        The check gets the value and the option's name.
        """

        def text_from(text: str) -> str:
            try:
                check(text, name)
            except AmpError as error:
                said = str(error).removeprefix(f"{name}: ")
                raise argparse.ArgumentTypeError(said) from error
            return text

        self.add(name, type=text_from, **more)

    def setting(self, name: str, **changed: Any) -> None:
        """Add a setting; `changed` is what of its option differs in this command.

        The value stays text, as a variable has it, and is checked as a variable is.
        """
        row, option = SETTINGS[name], {**OPTIONS[name], **changed}
        if "choices" in option or option.get("action") == "store_true":
            self.add(row.option, **option)
        else:
            self.checked(row.option, _FILE_CHECKS.get(name, row.read), **option)

    def rewriting(self, levels: str) -> None:
        """Add the settings that say how graphs are rewritten; `levels`: to which."""
        for name in REWRITING:
            self.setting(name, **({"help": levels} if name == "opt_level" else {}))

    def model(self, data: str = "") -> None:
        """Add the model or script, and what belongs to one of them.

        `data` says what `--data` holds; empty for a command that takes none.
        """
        said = "folder of a SavedModel, or a script, which runs in float32"
        self.path("model", metavar="SAVED_MODEL|SCRIPT", help=said)
        if data:
            self.path("--data", metavar="NPZ", help=data)
        self.add("--signature", help="only this one of a SavedModel")
        self.limit()

    def limit(self) -> None:
        """Add the time of a script, and say where its own arguments stand."""
        self.seconds("--seconds", "stop the script after so long")
        self.parser.epilog = "What follows `--` are the script's own arguments."


def _check_profile(value: str, name: str) -> None:
    from grappler_pass.costs import DeviceProfile

    DeviceProfile.load(SETTINGS["device_profile"].read(value, name))


def check_file(value: str, name: str) -> None:
    """Refuse the path of a file that there is not."""
    if not pathlib.Path(value).expanduser().is_file():
        raise ConfigError(f"{name}: there is no file {value}.")


# Settings whose files have to be there when they are given as options.
_FILE_CHECKS: Mapping[str, Callable[[str, str], object]] = {
    "device_profile": _check_profile,
    "ranges": check_file,
}


def environment_from(options: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the settings that are given as options."""
    values = {
        row.variable: getattr(options, row.option[2:].replace("-", "_"), None)
        for row in SETTINGS.values()
    }
    return {name: text_of(value) for name, value in values.items() if value}


def _whole_number(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"received {text!r}; wanted is {least} or more"
        )
    return int(text)


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
    foreign = [f"--{name}" for name in _OF_MODELS if getattr(options, name, None)]
    if foreign:
        raise ConfigError(
            f"{options.model} is a script: {' and '.join(foreign)} can be given with a "
            "SavedModel only."
        )
