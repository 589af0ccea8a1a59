"""Measured costs as a text file, to be carried from one machine to another.

The first line says what the file is and how many rows follow, one JSON object each.
Reading believes nothing: each row is checked, and refused with a reason.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from grappler_pass.costs.atomic_file import replacing
from grappler_pass.costs.records import (
    COST_COLUMNS,
    VERDICT_COLUMNS,
    CostRow,
    VerdictRow,
)
from grappler_pass.costs.tables import Row, merged
from grappler_pass.errors import AmpError

FORMAT = "tf-amp costs"
VERSION = 1

# No row is longer; a file without line ends must not be read into memory.
_LONGEST_LINE = 1 << 20


class ExportError(AmpError, ValueError):
    """The file is not an export of costs, or of another version; says which."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that was not taken.

    Attributes:
        line: its number in the file, from 1.
        reason: what is wrong with it.
    """

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Export:
    """What a file holds: rows, the better of two with one key, and what was refused.

    Attributes:
        rows: those to be believed.
        refused: those that are not.
        missing: how many the first line announces and the file lacks.
    """

    rows: tuple[Row, ...]
    refused: tuple[Refusal, ...]
    missing: int


def write_export(path: Path, rows: Iterable[Row]) -> int:
    """Write rows to a file, whole or not at all; return their number.

    Raises:
        OSError: the file cannot be written.
    """
    ordered = sorted(rows, key=lambda row: (type(row).__name__, row.identity))
    lines = [json.dumps(_plain(row)) for row in ordered]
    header = {"format": FORMAT, "version": VERSION, "rows": len(lines)}
    with _replacing(path) as file:
        file.writelines(f"{line}\n" for line in (json.dumps(header), *lines))
    return len(lines)


def read_export(path: Path) -> Export:
    """Read what `write_export` wrote.

    Raises:
        OSError: the file cannot be read.
        ExportError: it is something else.
    """
    rows: dict[tuple[str, ...], Row] = {}
    refused, lines = [], 0
    with path.open(encoding="utf-8", errors="replace") as file:
        announced = _announced(path, file.readline(_LONGEST_LINE))
        for number, line in enumerate(_lines(file), start=2):
            lines += 1
            try:
                row = _row(line)
                rows[row.identity] = merged(rows.get(row.identity), row)
            except ValueError as error:
                refused.append(Refusal(number, str(error)))
    missing = max(0, announced - lines)
    return Export(tuple(rows.values()), tuple(refused), missing)


def merge_exports(exports: Iterable[Export]) -> tuple[Row, ...]:
    """Return the rows of several files, the better of two with one key."""
    rows: dict[tuple[str, ...], Row] = {}
    for export in exports:
        for row in export.rows:
            rows[row.identity] = merged(rows.get(row.identity), row)
    return tuple(rows.values())


def _plain(row: Row) -> dict[str, Any]:
    names = COST_COLUMNS if isinstance(row, CostRow) else VERDICT_COLUMNS
    return dict(zip(names, row.columns, strict=True))


def _row(line: str) -> Row:
    try:
        plain = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {line[:40]!r}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"not a row: {line[:40]!r}")
    kind = VerdictRow if "fingerprint" in plain else CostRow
    names = VERDICT_COLUMNS if kind is VerdictRow else COST_COLUMNS
    if unknown := sorted(set(plain) - set(names)):
        raise ValueError(f"unknown column {unknown[0][:40]!r}")
    return kind.from_columns(plain)


def _announced(path: Path, line: str) -> int:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ExportError(
            f"{path} is no export of measured costs; `tf-amp costs export FILE` makes "
            "one"
        )
    if header.get("version") != VERSION:
        raise ExportError(
            f"{path} is an export of version {header.get('version')!r}; this tf-amp "
            f"reads version {VERSION}"
        )
    rows = header.get("rows")
    return rows if isinstance(rows, int) else 0


def _lines(file: TextIO) -> Iterator[str]:
    while line := file.readline(_LONGEST_LINE):
        if line.strip():
            yield line


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """Yield a new file that takes the place of the one at `path` on leaving."""
    if path.exists() and not path.is_file():
        # A pipe or a terminal; a folder refuses by itself.
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    with replacing(path.resolve()) as file:
        yield file
