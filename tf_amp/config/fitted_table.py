"""A table that leaves columns out rather than cut all of them short."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

# Names are folded where they take more, if all columns have room then.
_NAME_WIDTH = 30
# Wider than any terminal.
_UNLIMITED = 100_000


class FittedTable(Table):
    """A table of which a narrow terminal shows the columns that matter most.

    One column, the first unless told otherwise, has names, which may be folded; no
    other is.
    """

    def __init__(
        self, spare: Sequence[str], *, names: int = 0, has_rule: bool = True
    ) -> None:
        """Say which columns may be left out, by headings, first what matters least.

        `names` is the number of the column with names. Without a rule there is none
        below the headings.
        """
        box, padding = (SIMPLE, (0, 1, 0, 0)) if has_rule else (None, (0, 1))
        style = None if has_rule else "dim"
        super().__init__(
            box=box, padding=padding, pad_edge=has_rule, header_style=style
        )
        self._spare, self._names = spare, names

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Show as many columns as there is room for, and name the others."""
        left_out: list[str] = []
        for name in (*self._spare, ""):
            if _width(console, self._shown(left_out, _NAME_WIDTH)) <= options.max_width:
                break
            left_out += [name] if name else []
        yield self._shown(left_out)
        if left_out:
            names = ", ".join(left_out)
            yield Text(f"Not shown: {names}; a wider terminal or --json has them.")

    def _shown(self, left_out: Collection[str], name_width: int | None = None) -> Table:
        """Return a table of the other columns."""
        table = Table(
            box=self.box,
            padding=self.padding,
            pad_edge=self.pad_edge,
            header_style=self.header_style,
        )
        columns = [column for column in self.columns if column.header not in left_out]
        for number, column in enumerate(columns):
            table.add_column(
                column.header,
                justify=column.justify,
                overflow=column.overflow,
                no_wrap=number != self._names,
                max_width=name_width if number == self._names else None,
            )
        for cells in zip(*(column.cells for column in columns), strict=True):
            table.add_row(*cells)
        return table


def _width(console: Console, table: Table) -> int:
    options = console.options.update(width=_UNLIMITED)
    return Measurement.get(console, options, table).maximum
