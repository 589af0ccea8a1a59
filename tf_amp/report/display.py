"""How results look: as text, in a terminal, in a notebook as HTML, in a list as a line.

What is printed is folded to the terminal, and in a file or a pipe to `COLUMNS`, or to
100 columns. A narrow terminal shows the columns that matter most, and a file has all.
"""

from __future__ import annotations

import dataclasses
import html
import io
import itertools
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from rich.box import SIMPLE
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

# Of one table; a browser takes long over more.
_ROWS = 200
_BOX = "max-height: 40em; overflow: auto"
# Names are folded where they take more, if all columns have room then.
_NAME_WIDTH = 30
# Wider than any terminal.
_UNLIMITED = 100_000
# Of a file or a pipe, unless COLUMNS is set.
_PIPED_WIDTH = 100


def show(*printables: Any) -> None:
    """Print what rich can lay out, text of strings without markup."""
    console = Console(markup=False, highlight=False)
    is_piped = not console.is_terminal
    width = _PIPED_WIDTH if "COLUMNS" not in os.environ else console.width
    for each in printables:
        if is_piped:
            print(plain_text(each, width))
        else:
            console.print(each)


class Display:
    """A result that rich can lay out, and that has a summary of one line."""

    # Columns of its text, which is for files.
    TEXT_WIDTH: ClassVar[int] = 250

    def summary(self) -> str:
        """Return one line."""
        raise NotImplementedError

    def __rich__(self) -> RenderableType:
        """Show in a terminal."""
        raise NotImplementedError

    def __str__(self) -> str:
        """Print as text, nothing cut off."""
        return plain_text(self.__rich__(), self.TEXT_WIDTH)

    def __repr__(self) -> str:
        """Return one line, for lists and debuggers; `print` shows all."""
        return f"<{type(self).__name__} {self.summary()}>"

    def _repr_html_(self) -> str:
        """Show at the end of a cell."""
        return html_from(self)


@dataclasses.dataclass(frozen=True)
class FittedTable:
    """A table of which a narrow terminal shows the columns that matter most.

    One column, the first unless told otherwise, has names, which may be folded; no
    other is.

    Attributes:
      titles: of the columns.
      rows: of cells, whose text is no markup.
      numbers: titles of columns that are set to the right.
      spare: titles of columns that may be left out, first what matters least.
      names: number of the column with names.
      has_rule: whether there is a rule below the titles.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str | Text]]
    numbers: Collection[str] = ()
    spare: Sequence[str] = ()
    names: int = 0
    has_rule: bool = True

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Show as many columns as there is room for, and name the others."""
        left_out: list[str] = []
        unlimited = options.update(width=_UNLIMITED)
        if not console.is_terminal:
            whole = self.table(name_width=_NAME_WIDTH)
            width = Measurement.get(console, unlimited, whole).maximum
            wide = options.update(width=max(width, options.max_width))
            yield from console.render(self.table(), wide)
            return
        for name in (*self.spare, ""):
            table = self.table(left_out, _NAME_WIDTH)
            width = Measurement.get(console, unlimited, table).maximum
            if width <= options.max_width:
                break
            left_out += [name] if name else []
        yield self.table(left_out)
        if left_out:
            names = ", ".join(left_out)
            yield Text(f"Not shown: {names}; a wider terminal or --json has them.")

    def table(
        self, left_out: Collection[str] = (), name_width: int | None = None
    ) -> Table:
        """Return a table of all columns but some."""
        if self.has_rule:
            table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
        else:
            table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        shown = [title not in left_out for title in self.titles]
        for title in itertools.compress(self.titles, shown):
            has_names = title == self.titles[self.names]
            table.add_column(
                title,
                justify="right" if title in self.numbers else "left",
                overflow="fold",
                no_wrap=not has_names,
                max_width=name_width if has_names else None,
            )
        for row in self.rows:
            cells = itertools.compress(row, shown)
            table.add_row(*(Text(c) if isinstance(c, str) else c for c in cells))
        return table


def filled(
    table: Table,
    titles: Iterable[str],
    rows: Iterable[Iterable[str]],
    numbers: Collection[str] = (),
) -> Table:
    """Return a table with columns and rows of text, which is no markup.

    Text is folded where there is no room. Columns that are named as numbers are set to
    the right, and are not.
    """
    for title in titles:
        if title in numbers:
            table.add_column(title, justify="right", no_wrap=True)
        else:
            table.add_column(title, overflow="fold")
    for cells in rows:
        table.add_row(*map(Text, cells))
    return table


def end_of_name(name: str, most: int) -> str:
    """Return a name, or its end from the start of a scope, of so many characters."""
    if len(name) <= most:
        return name
    end = name[-most + 2 :]
    return "../" + end.partition("/")[2] if "/" in end else ".." + end


def bare_table() -> Table:
    """Return a table without lines and styles, for text."""
    return Table(box=None, pad_edge=False, header_style="")


def plain_text(printable: RenderableType, width: int) -> str:
    """Return the text that rich prints on so many columns, without style or markup."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False)
    console.print(printable, crop=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def markdown_table(
    titles: Sequence[str],
    rows: Iterable[Iterable[str]],
    numbers: Collection[str] = (),
) -> str:
    """Return a table of text in Markdown, with numbers set to the right."""
    lines = [
        titles,
        ["---:" if title in numbers else "---" for title in titles],
        *([_in_markdown(cell) for cell in cells] for cells in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _in_markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<>#\[\]])", r"\\\1", " ".join(text.split()))


def html_from(printable: Any) -> str:
    """Return a printable as HTML: its tables as tables, all text escaped.

    Args:
      printable: text, a table, a group of these, or what has `__rich__`; strings are
        text, without markup. Of a table the first 200 rows are shown.
    """
    return f'<div style="{_BOX}">{"".join(_parts(printable))}</div>'


def _parts(printable: Any) -> Iterator[str]:
    if hasattr(printable, "__rich__"):
        yield from _parts(printable.__rich__())
    elif isinstance(printable, Group):
        for each in printable.renderables:
            yield from _parts(each)
    elif isinstance(printable, Padding):
        yield from _parts(printable.renderable)
    elif isinstance(printable, FittedTable):
        yield _html_table(printable.table())
    elif isinstance(printable, Table):
        yield _html_table(printable)
    else:
        yield f'<p style="white-space: pre-wrap">{_escaped(printable)}</p>'


def _html_table(table: Table) -> str:
    columns = table.columns
    tags = [f'style="text-align: {column.justify}"' for column in columns]

    def row(tag: str, texts: Any) -> str:
        cells = zip(tags, texts, strict=True)
        return (
            f"<tr>{''.join(f'<{tag} {s}>{_escaped(t)}</{tag}>' for s, t in cells)}</tr>"
        )

    rows = zip(*(column.cells for column in columns), strict=True)
    body = [row("td", cells) for cells, _ in zip(rows, range(_ROWS), strict=False)]
    title = f"<caption>{_escaped(table.title)}</caption>" if table.title else ""
    left_out = table.row_count - len(body)
    more = f"<p>and {left_out} more rows; print() shows them</p>" if left_out else ""
    head = row("th", [column.header for column in columns])
    return (
        f"<table>{title}<thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"
        f"{more}"
    )


def _escaped(text: Any) -> str:
    return html.escape(str(text)).replace("\n", "<br>")
