"""What was measured on this machine, kept between runs and shared by processes.

Keyed by device and TensorFlow version: figures of another one are never used. A job
goes on whatever happens to the file: what cannot be kept there is remembered in memory
and kept as soon as it can be, and one warning says why.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from absl import logging

from grappler_pass.costs.database.price_list import PriceList
from grappler_pass.costs.database.records import (
    CostRow,
    Identity,
    Row,
    Spending,
    Verdict,
    better,
    flaw_of,
    row_from_text,
    text_from_row,
)
from grappler_pass.costs.database.sqlite_file import SqliteFile

# A job waits for other processes this long, and less once it was in vain.
JOB_PATIENCE_SECONDS = 0.4
_SPENT_PATIENCE_SECONDS = 0.05
_LARGEST_BYTES = 256 << 20

_T = TypeVar("_T")


def costs_path(cache_dir: Path) -> Path:
    """Return where the database lies in the user's cache folder."""
    return cache_dir / "costs.sqlite3"


class CostDatabase:
    """Rows in a file that threads and processes may share.

    `rows`, `put` and `clear` raise OSError or sqlite3.Error where the file fails; all
    else goes on without it.
    """

    def __init__(
        self,
        path: Path,
        *,
        largest_bytes: int = _LARGEST_BYTES,
        patience_seconds: float = JOB_PATIENCE_SECONDS,
    ) -> None:
        """Remember where it is; nothing is opened or made yet.

        Args:
            path: of the file, which need not exist.
            largest_bytes: how far the file may grow.
            patience_seconds: how long to wait for another process that is using it.
        """
        self.path = path
        self._file = SqliteFile(path, largest_bytes, patience_seconds)
        self._full_patience = patience_seconds
        # What could not be written yet.
        self._waiting: dict[Identity, Row] = {}
        self._warned: set[str] = set()
        # By device and version, the file and the number of the last row loaded.
        self._loaded: dict[tuple[str, str], tuple[object, int]] = {}

    def load(self, device: str, tensorflow: str) -> PriceList:
        """Return what was measured on a device with a version of TensorFlow."""
        self._loaded.pop((device, tensorflow), None)
        return self.load_new(device, tensorflow)

    def load_new(self, device: str, tensorflow: str) -> PriceList:
        """Return what was put there since it was last loaded from here."""
        origin = (device, tensorflow)

        def read(reader: sqlite3.Connection) -> list[Row]:
            present = self._file.identity()
            file, last = self._loaded.get(origin, (None, 0))
            last = last if file == present else 0
            found = _select(reader, origin, after=last)
            self._loaded[origin] = (present, max(found, default=last))
            return list(found.values())

        kept = self._attempt(lambda: self._file.read(read))
        return PriceList(
            row.measured
            for row in [*(kept or ()), *self._waiting.values()]
            if isinstance(row, CostRow) and (row.device, row.tensorflow) == origin
        )

    def verdict(self, device: str, tensorflow: str, fingerprint: str) -> Verdict | None:
        """Return how a comparison ended on a device, if there was one."""
        row = self._row((device, tensorflow, f"verdict {fingerprint}"))
        return row if isinstance(row, Verdict) else None

    def spent(self, device: str, tensorflow: str, fingerprint: str) -> float:
        """Return the seconds that finding out about a graph has taken so far."""
        row = self._row((device, tensorflow, f"spending {fingerprint}"))
        return row.spent_seconds if isinstance(row, Spending) else 0.0

    def keep(self, rows: Sequence[Row]) -> None:
        """Keep rows; of two with one identity the better stays."""
        for row in rows:
            if (flaw := flaw_of(row)) is None:
                known = self._waiting.get(row.identity)
                self._waiting[row.identity] = better(known, row)
            else:
                self._warn_once("row", f"not a cost to be kept: {flaw}")
        waiting = dict(self._waiting)
        if self._attempt(lambda: self.put(list(waiting.values()))) is None:
            return
        self._file.patience = self._full_patience
        for identity, row in waiting.items():
            # Another thread may have put a better one there meanwhile.
            if self._waiting.get(identity) is row:
                self._waiting.pop(identity, None)

    def correct(self, rows: Sequence[CostRow]) -> None:
        """Keep rows in place of what was measured before, however well."""
        self._attempt(lambda: self.put(rows, always=True))

    def flush(self) -> bool:
        """Write what could not be written before, and tell whether nothing is left."""
        if self._waiting:
            self.keep(())
        return not self._waiting

    def rows(self) -> list[Row]:
        """Return all costs and verdicts in the file, of every device and version."""
        found = self._file.read(_select) or {}
        return [row for row in found.values() if not isinstance(row, Spending)]

    def put(self, rows: Sequence[Row], *, always: bool = False) -> int:
        """Put all rows or none into the file.

        Args:
            rows: of two with one identity the better stays.
            always: whether the new one stays, better or not.

        Returns:
            How many were there before.
        """
        return self._file.write(
            lambda writer: sum(_put(writer, row, always) for row in rows)
        )

    def clear(self, where: Mapping[str, str] | None = None) -> int:
        """Remove every row, or those with these values of "device", "tensorflow".

        Returns:
            How many were removed.
        """
        terms = "".join(f" AND {name} = ?" for name in where or ())
        statement = f"DELETE FROM rows WHERE true{terms}"
        values = tuple((where or {}).values())
        return self._file.write(
            lambda writer: writer.execute(statement, values).rowcount
        )

    def _row(self, identity: Identity) -> Row | None:
        if waiting := self._waiting.get(identity):
            return waiting
        return self._attempt(
            lambda: self._file.read(lambda reader: _known(reader, identity))
        )

    def _attempt(self, work: Callable[[], _T]) -> _T | None:
        """Return what `work` returns; None, and one warning, where the file fails."""
        try:
            return work()
        except (OSError, sqlite3.Error) as error:
            self._file.patience = min(self._file.patience, _SPENT_PATIENCE_SECONDS)
            self._warn_once(
                "file",
                f"measured costs cannot be kept in {self.path} and are remembered by "
                f"this program alone: {error}",
            )
            return None

    def _warn_once(self, subject: str, message: str) -> None:
        if subject not in self._warned:
            self._warned.add(subject)
            logging.warning("%s", message)


def _select(
    reader: sqlite3.Connection, identity: Sequence[str] = (), *, after: int = 0
) -> dict[int, Row]:
    """Return acceptable rows by number, of which as much of the identity is given."""
    columns = ("device", "tensorflow", "subject")[: len(identity)]
    terms = " AND ".join(["number > ?", *(f"{name} = ?" for name in columns)])
    rows = {}
    for number, body in reader.execute(
        f"SELECT number, body FROM rows WHERE {terms} "
        "ORDER BY device, tensorflow, subject",
        (after, *identity),
    ):
        with contextlib.suppress(ValueError):
            rows[number] = row_from_text(body)
    return rows


def _known(reader: sqlite3.Connection, identity: Identity) -> Row | None:
    found = _select(reader, identity).values()
    return next((row for row in found if row.identity == identity), None)


def _put(writer: sqlite3.Connection, row: Row, always: bool) -> bool:
    """Put a row in unless there is a better one; tell whether there was one before."""
    known = _known(writer, row.identity)
    if always or better(known, row) is row:
        writer.execute(
            "INSERT OR REPLACE INTO rows (device, tensorflow, subject, body) "
            "VALUES (?, ?, ?, ?)",
            (*row.identity, text_from_row(row)),
        )
    return known is not None
