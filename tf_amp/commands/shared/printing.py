"""Print what rich can lay out: fitted to a terminal, else as plain text."""

from __future__ import annotations

from typing import Any


def show(*printables: Any) -> None:
    """Print one after the other; in a file or a pipe no line is folded."""
    from rich.console import Console

    console = Console()
    for each in printables:
        if console.is_terminal:
            console.print(each, highlight=False)
        else:
            print(each)
