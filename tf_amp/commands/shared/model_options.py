"""Options of commands that take a SavedModel or a script, and the script's time."""

from __future__ import annotations

import argparse
import pathlib

from tf_amp.commands.shared.arguments import seconds_from_text
from tf_amp.errors import ConfigError, ScriptMissingError

# Options that make sense for SavedModels only; no command has to have all of them.
_OF_MODELS = ("data", "signature", "batch", "measure")


def add_to(parser: argparse.ArgumentParser, *, data: str | None = None) -> None:
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


def check(options: argparse.Namespace) -> None:
    """Refuse options that make no sense together.

    Raises:
      ScriptMissingError: there is no such SavedModel or script.
      ConfigError: an option belongs to the other kind, or is not positive.
    """
    if not options.model.exists():
        raise ScriptMissingError(f"{options.model}: no such SavedModel or script.")
    batch = getattr(options, "batch", None)
    if batch is not None and batch <= 0:
        raise ConfigError(f"--batch must be positive, got {batch}.")
    if options.model.is_dir():
        if options.script_arguments or options.seconds is not None:
            raise ConfigError(
                f"{options.model} is a folder, so a SavedModel: --seconds and "
                "arguments belong to scripts."
            )
        return
    offered = [name for name in _OF_MODELS if hasattr(options, name)]
    if any(getattr(options, name) for name in offered):
        names = " and ".join(f"--{name}" for name in offered)
        raise ConfigError(f"{names} belong to SavedModels.")
