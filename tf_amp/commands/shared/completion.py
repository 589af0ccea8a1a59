"""`tf-amp --print-completion bash`: what a shell completes command lines by."""

from __future__ import annotations

import argparse
import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

SHELLS = ("bash", "zsh", "tcsh")
# Besides those whose type is a path.
_PATHS = {"device_profile", "log", "ranges", "script"}


class PrintCompletion(argparse.Action):
    """Prints a shell's completion of a parser and exits, as `--version` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, *given: Any, **named: Any
    ) -> None:
        """Print it.

        Raises:
          SystemExit: always; with 2 where shtab is missing.
        """
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
