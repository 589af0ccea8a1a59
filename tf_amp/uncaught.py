"""How an error that nobody catches is shown: what its reader can use, and no more.

Python hands it to `sys.excepthook`, which may be the program's own by then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def show_in_a_line(is_meant: Callable[[BaseException], bool]) -> None:
    """Show errors of a kind in one line, without a traceback."""
    _show(is_meant, lambda error, before: print(f"tf-amp: {error}", file=sys.stderr))


def show_from(error: BaseException, first: TracebackType | None) -> None:
    """Show an error with its frames from the first one given on; None: with none."""

    def show(error: BaseException, before: Hook) -> object:
        return before(type(error), error.with_traceback(first), first)

    _show(lambda other: other is error, show)


def _show(
    is_meant: Callable[[BaseException], bool],
    show: Callable[[BaseException, Hook], object],
) -> None:
    before: Hook = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, frames: TracebackType | None
    ) -> None:
        if is_meant(error):
            show(error, before)
        else:
            before(kind, error, frames)

    sys.excepthook = hook
