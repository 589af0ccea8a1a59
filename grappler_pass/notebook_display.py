"""How results look: as text, in a notebook as HTML tables, in a list as one line."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table

# Of one table; a browser takes long over more.
_ROWS = 200
_BOX = "max-height: 40em; overflow: auto"


class NotebookDisplay:
    """A result that rich can lay out, and that has a summary of one line."""

    def summary(self) -> str:
        """Return one line."""
        raise NotImplementedError

    def __rich__(self) -> RenderableType:
        """Show in a terminal."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return one line, for lists and debuggers; `print` shows all."""
        return f"<{type(self).__name__} {self.summary()}>"

    def _repr_html_(self) -> str:
        """Show at the end of a cell."""
        return html_from(self)


def plain_text(printable: RenderableType, width: int) -> str:
    """Return what rich would print on so many columns, without any style or markup."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, markup=False).print(printable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def html_from(printable: Any) -> str:
    """Return what rich would print as HTML, its tables as tables, all text escaped.

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
    elif isinstance(printable, Table):
        yield _table(printable)
    else:
        yield f'<p style="white-space: pre-wrap">{_escaped(printable)}</p>'


def _table(table: Table) -> str:
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
