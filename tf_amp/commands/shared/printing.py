"""Results of a command: fitted to a terminal, as plain text, or as JSON."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from tf_amp.report import codec
from tf_amp.run import progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_STDOUT = 1
# Between two lines of progress, where there is no bar.
SILENT_SECONDS = 15.0


def show(*printables: Any) -> None:
    """Print what rich can lay out; in a file or a pipe no line is folded."""
    from rich.console import Console

    console = Console()
    for each in printables:
        if console.is_terminal:
            console.print(each, highlight=False)
        else:
            print(each)


def show_json(rows: Iterable[Any], stream: TextIO | None = None) -> None:
    """Print an array of plain values and of results, on standard output by default."""
    print(codec.to_json(list(rows)), file=stream, flush=True)


def stream_for(options: argparse.Namespace) -> TextIO:
    """Return where a command's result goes, before anything of a script runs.

    With `--json` and a script, standard output becomes standard error from now on: for
    Python, C and child processes, and for what the script has done at its very end. The
    stream that is returned leads where standard output did.
    """
    if not options.json or options.model.is_dir():
        return sys.stdout
    try:
        kept, errors = os.dup(_STDOUT), sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # One of them is closed, or something else than a descriptor.
        return sys.stdout
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(errors, _STDOUT)
    return open(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)


def progress_bar(console: Console) -> Progress:
    """Return a bar with what is done now and the time left, gone once it is over."""
    from rich import progress as rich_progress

    return rich_progress.Progress(
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        speed_estimate_period=float("inf"),
        disable=not console.is_terminal,
    )


@contextlib.contextmanager
def progress_shown() -> Iterator[None]:
    """Show how far tools come: a bar on a terminal, else a line now and then.

    Not around a script, whose own output would go through it.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        with progress.listened_to(_lines()):
            yield
        return
    bar = progress_bar(console)
    task = bar.add_task("", total=None)

    def show(what: str, done: int, total: int | None) -> None:
        bar.update(task, description=what, completed=done, total=total)

    with bar, progress.listened_to(show):
        yield


def _lines() -> progress.Listener:
    """Return what prints a line, unless it is a short while since the last one."""
    last = time.monotonic()

    def show(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last >= SILENT_SECONDS:
            last = time.monotonic()
            of_all = "" if total is None else f" ({done} of {total})"
            print(f"tf-amp: {what}{of_all} ...", file=sys.stderr, flush=True)

    return show
