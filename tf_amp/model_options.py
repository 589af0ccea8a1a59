"""Options of commands that take a SavedModel or a script."""

from __future__ import annotations

import argparse
import pathlib

from tf_amp.errors import ConfigError, ScriptMissing


def add_to(parser: argparse.ArgumentParser, *, data: str) -> None:
    """Add the model or script, and what belongs to one of them, to a parser.

    Args:
      parser: of the command.
      data: what `--data` holds.
    """
    parser.add_argument(
        "model",
        type=pathlib.Path,
        metavar="SAVED_MODEL|SCRIPT",
        help="folder of a SavedModel, or a script, which runs in float32",
    )
    parser.add_argument("--data", type=pathlib.Path, metavar="NPZ", help=data)
    parser.add_argument("--signature", help="only this one of a SavedModel")
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="stop the script after so long"
    )


def check(options: argparse.Namespace) -> None:
    """Refuse options that make no sense together.

    Raises:
      ScriptMissing: there is no such SavedModel or script.
      ConfigError: an option belongs to the other kind.
    """
    if not options.model.exists():
        raise ScriptMissing(f"{options.model}: no such SavedModel or script.")
    if options.model.is_dir():
        if options.script_arguments or options.seconds is not None:
            raise ConfigError(
                f"{options.model} is a folder, so a SavedModel: --seconds and "
                "arguments belong to scripts."
            )
        return
    if options.data or options.signature:
        raise ConfigError("--data and --signature belong to SavedModels.")
    if options.seconds is not None and options.seconds <= 0:
        raise ConfigError(f"--seconds must be positive, got {options.seconds:g}.")
