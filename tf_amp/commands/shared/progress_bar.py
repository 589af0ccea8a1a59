"""A bar on standard error while a tool works, if that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from tf_amp.tools import progress


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Show how far tools come, and nothing of it once they are done.

    Not around a script, whose own output would go through it.
    """
    if not sys.stderr.isatty():
        yield
        return
    import rich.progress
    from rich.console import Console

    bar = rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    )
    task = bar.add_task("", total=None)

    def show(what: str, done: int, total: int | None) -> None:
        bar.update(task, description=what, completed=done, total=total)

    with bar, progress.listened_to(show):
        yield
