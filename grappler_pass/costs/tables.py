"""The tables of the cost database: reading, merging, and what a damaged one holds."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from grappler_pass.costs.records import (
    COST_COLUMNS,
    SPENDING_COLUMNS,
    VERDICT_COLUMNS,
    AnyRow,
    CostRow,
    SpendingRow,
    VerdictRow,
)

APPLICATION_ID = int.from_bytes(b"tfAM", "big")
VERSION = 3

# Rows skipped in search of a readable one; a page holds far fewer.
_MOST_FAILURES = 2000

Row = CostRow | VerdictRow
_R = TypeVar("_R", CostRow, VerdictRow, SpendingRow)
_A = TypeVar("_A", bound=AnyRow)


@dataclass(frozen=True)
class Table(Generic[_R]):
    """A table whose first columns are its key."""

    name: str
    columns: tuple[str, ...]
    key_length: int
    row_type: type[_R]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that no two rows have in common."""
        return self.columns[: self.key_length]

    @property
    def definition(self) -> str:
        """The statement that makes it."""
        body = f"{_listed(self.columns)}, PRIMARY KEY ({_listed(self.key)})"
        return f"CREATE TABLE {self.name} ({body})"

    @property
    def upsert(self) -> str:
        """The statement that puts a row in, in place of one with its key."""
        marks = ", ".join("?" * len(self.columns))
        into = f"{self.name} ({_listed(self.columns)})"
        return f"INSERT OR REPLACE INTO {into} VALUES ({marks})"

    def select(
        self,
        reader: sqlite3.Connection,
        where: Mapping[str, str] | None = None,
        *,
        after: int = 0,
    ) -> Iterator[_R]:
        """Yield the acceptable rows that have these values, by key.

        Args:
            reader: of the file.
            where: values by column; None: all rows.
            after: number of the last row that is left out; one that is put in the
                place of another gets a new number.
        """
        terms = [*(f'"{name}" = ?' for name in where or ()), "rowid > ?"]
        found = reader.execute(
            f"SELECT {_listed(self.columns)} FROM {self.name} "
            f"WHERE {' AND '.join(terms)} ORDER BY {_listed(self.key)}",
            (*(where or {}).values(), after),
        )
        for values in found:
            if (row := self._row(values)) is not None:
                yield row

    def last(self, reader: sqlite3.Connection) -> int:
        """Return the number of the last row; 0 where there is none."""
        (number,) = reader.execute(f"SELECT max(rowid) FROM {self.name}").fetchone()
        return int(number or 0)

    def readable(self, reader: sqlite3.Connection) -> Iterator[_R]:
        """Yield the acceptable rows of a damaged table."""
        start, failures = 1, 0
        while failures < _MOST_FAILURES:
            try:
                for number, row in self._rows_from(reader, start):
                    if number < start:
                        raise sqlite3.DatabaseError("numbers are out of order")
                    start = number + 1
                    if row is not None:
                        yield row
                return
            except (sqlite3.Error, OverflowError):
                # Behind the rows of a damaged page there may be a sound one.
                start, failures = start + 1, failures + 1

    def _rows_from(
        self, reader: sqlite3.Connection, start: int
    ) -> Iterator[tuple[int, _R | None]]:
        found = reader.execute(
            f"SELECT rowid, {_listed(self.columns)} FROM {self.name} NOT INDEXED "
            "WHERE rowid >= ? ORDER BY rowid",
            (start,),
        )
        return ((number, self._row(values)) for number, *values in found)

    def _row(self, values: Sequence[object]) -> _R | None:
        try:
            return self.row_type.from_columns(
                dict(zip(self.columns, values, strict=True))
            )
        except ValueError:
            return None


COSTS = Table("costs", COST_COLUMNS, 4, CostRow)
VERDICTS = Table("verdicts", VERDICT_COLUMNS, 3, VerdictRow)
SPENDING = Table("spending", SPENDING_COLUMNS, 3, SpendingRow)
TABLES: tuple[Table[Any], ...] = (COSTS, VERDICTS, SPENDING)
_TABLE_OF: Mapping[type[AnyRow], Table[Any]] = {
    table.row_type: table for table in TABLES
}


def condition(where: Mapping[str, str] | None) -> str:
    """Return the clause that these columns have values to be given."""
    terms = " AND ".join(f'"{name}" = ?' for name in where or ())
    return f" WHERE {terms}" if terms else ""


def make(writer: sqlite3.Connection) -> None:
    """Make an empty file a cost database."""
    for table in TABLES:
        writer.execute(table.definition)
    writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    writer.execute(f"PRAGMA user_version = {VERSION}")


def put(
    writer: sqlite3.Connection, rows: Iterable[AnyRow], *, always: bool = False
) -> int:
    """Put rows in; of two with one key the better stays, or always the new one.

    Returns:
        How many keys were there before.
    """
    known_keys = 0
    for row in rows:
        table = _TABLE_OF[type(row)]
        key = dict(zip(table.key, row.identity, strict=False))
        known = next(table.select(writer, key), None)
        known_keys += known is not None
        kept = row if always else merged(known, row)
        if kept is not known:
            writer.execute(table.upsert, kept.columns)
    return known_keys


def merged(known: Any, row: _A) -> _A:
    """Return the better of two rows with one key, the known one if equal."""
    best: _A = row if known is None else known.merged(row)
    return best


def remove(
    writer: sqlite3.Connection, table: Table[Any], where: Mapping[str, str] | None
) -> int:
    """Remove the rows that have these values, and return their number."""
    values = tuple((where or {}).values())
    return writer.execute(
        f"DELETE FROM {table.name}{condition(where)}", values
    ).rowcount


def readable_rows(reader: sqlite3.Connection) -> list[AnyRow]:
    """Return the rows that a damaged database still gives away."""
    with contextlib.suppress(sqlite3.Error):
        # Lets SQLite read a file that is shorter than its header says.
        reader.execute("PRAGMA writable_schema = ON")
    return [row for table in TABLES for row in table.readable(reader)]


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)
