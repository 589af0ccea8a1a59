"""The table on the terminal."""

from __future__ import annotations

import itertools

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tf_amp.tools.bench.record import Record
from tf_amp.tools.bench.rendering.words import (
    TITLES,
    advice,
    cells,
    context_lines,
    remarks,
    title_of,
)
from tf_amp.tools.bench.summary import FASTER, SLOWER, summarized

_STYLES = {FASTER: "green", SLOWER: "red"}
# A file or a pipe folds no lines.
_WIDE = 200


def print_record(record: Record) -> None:
    """Print the table of what was measured, and the remarks on it."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDE)
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in TITLES:
        is_text = name in ("method", "verdict")
        table.add_column(name, justify="left" if is_text else "right")
    rows = summarized(record.job, record.samples)
    for _, of_batch in itertools.groupby(rows, lambda row: row.batch):
        for row in of_batch:
            style = None if row.failure else _STYLES.get(row.verdict)
            table.add_row(*map(Text, cells(row)), style=style)
        table.add_row()
    console.print(Text(title_of(record.job), style="bold"))
    console.print(table)
    for line in (*remarks(record), *context_lines(record), *advice(record)):
        console.print(Text(line), soft_wrap=True)
