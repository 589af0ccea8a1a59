"""A bar of progress that says what is being measured."""

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

Announce = Callable[[str], None]


@contextlib.contextmanager
def announcing(total: int | None = None) -> Iterator[Announce]:
    """Yield what says which measurement begins; there are ``total`` of them."""
    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=total)
        yield lambda what: progress.update(task, advance=1, description=what)
