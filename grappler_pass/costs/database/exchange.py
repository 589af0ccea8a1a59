"""Measured costs as a text file, to be carried from one machine to another.

The first line says what the file is and how many rows follow, one JSON object each.
Reading believes nothing: each row is checked, and refused with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from grappler_pass.costs.atomic_file import replacing
from grappler_pass.costs.database.records import (
    Row,
    best_rows,
    row_from_text,
    text_from_row,
)
from grappler_pass.errors import AmpError

FORMAT = "tf-amp costs"
VERSION = 1

# No row is longer; a file without line ends must not be read into memory.
_LONGEST_LINE = 1 << 20


class ExportError(AmpError, ValueError):
    """The file is not an export of costs, or of another version; says which."""


class Refusal(NamedTuple):
    """A row that was not taken: the number of its line, from 1, and what is wrong."""

    line: int
    reason: str


class Export(NamedTuple):
    """What a file holds: rows, the better of two with one key, and what was refused.

    `missing` is how many rows the first line announces and the file lacks.
    """

    rows: tuple[Row, ...]
    refused: tuple[Refusal, ...]
    missing: int


def write_export(path: Path, rows: Iterable[Row]) -> int:
    """Write rows to a file, whole or not at all; return their number.

    Raises:
        OSError: the file cannot be written.
    """
    ordered = sorted(rows, key=lambda row: row.identity)
    header = {"format": FORMAT, "version": VERSION, "rows": len(ordered)}
    lines = [json.dumps(header), *map(text_from_row, ordered)]
    with replacing(path) as file:
        file.writelines(f"{line}\n" for line in lines)
    return len(ordered)


def read_export(path: Path) -> Export:
    """Read what `write_export` wrote.

    Raises:
        OSError: the file cannot be read.
        ExportError: it is something else.
    """
    rows: list[Row] = []
    refused: list[Refusal] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        announced = _announced(path, file.readline(_LONGEST_LINE))
        lines = iter(lambda: file.readline(_LONGEST_LINE), "")
        for number, line in enumerate(filter(str.strip, lines), start=2):
            try:
                rows.append(row_from_text(line))
            except ValueError as error:
                refused.append(Refusal(number, str(error)))
    missing = max(0, announced - len(rows) - len(refused))
    return Export(best_rows(rows), tuple(refused), missing)


def merge_exports(exports: Iterable[Export]) -> tuple[Row, ...]:
    """Return the rows of several files, the better of two with one key."""
    return best_rows(row for export in exports for row in export.rows)


def _announced(path: Path, line: str) -> int:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        remedy = "`tf-amp costs export FILE` makes one"
        raise ExportError(f"{path} is no export of measured costs; {remedy}")
    if header.get("version") != VERSION:
        raise ExportError(
            f"{path} is an export of version {header.get('version')!r}; this tf-amp "
            f"reads version {VERSION}"
        )
    rows = header.get("rows")
    return rows if isinstance(rows, int) else 0
