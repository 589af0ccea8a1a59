"""What the campaigns of `make test-long` came to: a row each in `long_runs.md`."""

from __future__ import annotations

import datetime
import importlib.metadata
import pathlib
import resource
import sys

FILE = pathlib.Path(__file__).with_name("long_runs.md")
OPTION = "--note"


def note(module: str, seeds: range, result: str, path: pathlib.Path = FILE) -> None:
    """Write the row of the command that is running, in the place of its last one."""
    command = command_of(module, sys.argv[1:])
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cells = (
        command,
        f"{seeds.start}-{seeds.stop - 1}",
        f"{datetime.date.today()}",
        importlib.metadata.version("tensorflow-cpu"),
        f"{spent.ru_utime + spent.ru_stime:.0f}",
        result,
    )
    path.write_text(with_row(path.read_text(), cells))


def command_of(module: str, arguments: list[str]) -> str:
    """Return a command line as its row begins."""
    kept = [argument for argument in arguments if argument != OPTION]
    return f"`{' '.join(['python -m', module, *kept])}`"


def with_row(text: str, cells: tuple[str, ...]) -> str:
    """Return a table with a row in the place of the one that begins alike."""
    row = f"| {' | '.join(cells)} |"
    lines = text.splitlines()
    same = [i for i, line in enumerate(lines) if line.startswith(f"| {cells[0]} |")]
    for number in same:
        lines[number] = row
    return "\n".join(lines if same else [*lines, row]) + "\n"
