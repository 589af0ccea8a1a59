"""The command line: `tf-amp` and `python -m tf_amp`.

    tf-amp run train.py ARGS...
    tf-amp doctor | explain SAVED_MODEL | calibrate
    tf-amp audit SAVED_MODEL | SCRIPT --device-profile v100 -- ARGS...
    tf-amp verify | ranges SAVED_MODEL | SCRIPT -- ARGS...
    tf-amp bench SCRIPT | MODULE:FUNCTION | SAVED_MODEL -- ARGS...
    tf-amp convert IN OUT

Exit codes are those of `_shared`; `run` ends as its script does.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import pathlib
import pkgutil
import shlex
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import tf_amp
from tf_amp import commands
from tf_amp.commands._shared import INTERRUPTED, Options, exit_codes, say
from tf_amp.errors import REFUSED, AmpError, guess

_SHELLS = ("bash", "zsh", "tcsh")
# Besides those whose type is a path.
_PATHS = {"calibration", "device_profile", "log", "ranges", "script"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    A first argument that is no command is a script to run.
    """
    line = list(sys.argv[1:] if argv is None else argv)
    if line and line[0] not in _commands() and line[0][:1] != "-":
        if _is_word(line[0]) and not os.path.exists(line[0]):
            commands_are = f"; commands are {', '.join(_commands())}."
            near = guess(line[0], _commands()) or commands_are
            say(f"{line[0]!r} is no command, nor a script{near}")
            return REFUSED
        line.insert(0, "run")
    command_line = shlex.join(("tf-amp", *line))
    line, script_arguments = split(line)
    try:
        options, unknown = _parser().parse_known_args(line)
    except SystemExit:
        # Help has been printed, or a version, of which `head` may read a line.
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _drop_output()
        raise
    if unknown:
        # The command knows its options; the parser of all commands none of them.
        parser = options.parser
        names = [name for each in parser._actions for name in each.option_strings]
        near = guess(unknown[0].partition("=")[0], names)
        said = f"unrecognized arguments: {' '.join(unknown)}{near}"
        if getattr(options.command, "TAKES_SCRIPT", False):
            said = f"{said}{'' if near else '.'} Those of a script follow `--`."
        parser.error(said)
    options.script_arguments = script_arguments
    options.command_line = command_line
    try:
        code = int(options.command.main(options))
        sys.stdout.flush()
        return code
    except AmpError as error:
        if error.is_scripts_own:
            raise
        say(f"{error}")
        return REFUSED
    except KeyboardInterrupt:
        if getattr(options.command, "ENDS_AS_PYTHON", False):
            raise
        say("interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        if getattr(options.command, "ENDS_AS_PYTHON", False):
            raise
        _drop_output()
        return INTERRUPTED


def _drop_output() -> None:
    """Print nothing more: what read the output has ended, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_word(text: str) -> bool:
    """Tell whether a text may be meant as a command, and not as a path."""
    return bool(text) and os.sep not in text and "." not in text


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command line, and what follows `--` in it where a script may stand."""
    command = _commands().get(arguments[0]) if arguments else None
    if not getattr(command, "TAKES_SCRIPT", False) or "--" not in arguments:
        return list(arguments), []
    end = list(arguments).index("--")
    return list(arguments[:end]), list(arguments[end + 1 :])


@functools.cache
def _commands() -> dict[str, ModuleType]:
    """Return the modules of commands by name.

    Each has a `SUMMARY`; `add_options`, which gets `Options`; `EXITS`, what its exit
    codes mean; and `main`, which gets what was parsed and returns the exit code, or
    raises an AmpError that says in a line what is wrong. One with `ENDS_AS_PYTHON` does
    so at Ctrl-C; of one with `TAKES_SCRIPT` the script's arguments follow `--`.
    """
    names = [each.name for each in pkgutil.iter_modules(commands.__path__)]
    return {
        name: importlib.import_module(f"{commands.__name__}.{name}")
        for name in names
        if name != "cli" and not name.startswith("_")
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tf-amp",
        allow_abbrev=False,
        description="Automatic mixed precision for TensorFlow programs.",
        epilog="`tf-amp train.py ARGS...` is short for `tf-amp run train.py ARGS...`. "
        f"{exit_codes()} `run` ends as its script does.",
    )
    parser.add_argument("-V", "--version", action="version", version=tf_amp.__version__)
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=_SHELLS,
        help="print what the shell completes by; source it (takes shtab)",
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in _commands().items():
        summary = command.SUMMARY
        description = f"{summary[0].upper()}{summary[1:]}."
        subparser = subparsers.add_parser(
            name, help=summary, description=description, allow_abbrev=False
        )
        subparser.set_defaults(command=command, parser=subparser)
        command.add_options(Options(subparser))
        exits = exit_codes(command.EXITS)
        subparser.epilog = " ".join(filter(None, (subparser.epilog, exits)))
    return parser


class PrintCompletion(argparse.Action):
    """Prints a shell's completion of a parser and exits, as `--version` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, *given: Any, **named: Any
    ) -> None:
        """Print it, and exit: with 2 where shtab is missing."""
        try:
            shtab = importlib.import_module("shtab")
        except ModuleNotFoundError:
            parser.error("--print-completion takes shtab: pip install shtab")
        for action in _actions(parser):
            if action.type is pathlib.Path or action.dest in _PATHS:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        print(shtab.complete(parser, given[1]))
        parser.exit()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from _actions(inner)
