"""What was measured on this machine, kept between runs and shared by processes.

Keyed by device and TensorFlow version: figures of another one are never used. A job
goes on whatever happens to the file: what cannot be kept there is remembered in memory
and kept as soon as it can be, and one warning says why. A damaged file is set aside and
a new one begun, since all that it holds can be measured again.

SQLite keeps what it knows of its locks by process, so a child that is forked while a
connection is open would believe to hold its parent's locks. Therefore a connection
lives no longer than a transaction, threads take turns, and a fork waits for the turn to
end.
"""

from __future__ import annotations

import contextlib
import fcntl
import sqlite3
import threading
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
    best_rows,
    better,
    row_from_text,
    text_from_row,
)
from grappler_pass.fork_safety import per_process

# A job waits for other processes no longer than this.
_JOB_PATIENCE_SECONDS = 0.2
# A row that takes the place of another gets a new number, and none is given twice.
_TABLE = """CREATE TABLE IF NOT EXISTS rows (
    number INTEGER PRIMARY KEY AUTOINCREMENT, device, tensorflow, subject, body,
    UNIQUE (device, tensorflow, subject)
)"""

_T = TypeVar("_T")
Work = Callable[[sqlite3.Connection], _T]
# What changes when another file takes the place of one.
FileIdentity = tuple[int, int]

_turn = threading.RLock()
per_process(_turn.release, before=_turn.acquire, after_in_parent=_turn.release)


def costs_path(cache_dir: Path) -> Path:
    """Return where the database lies in the user's cache folder."""
    return cache_dir / "costs.sqlite3"


class CostDatabase:
    """Rows in a file that threads and processes may share.

    `rows`, `put` and `clear` raise OSError or sqlite3.Error where the file fails; all
    else goes on without it.
    """

    def __init__(
        self, path: Path, *, patience_seconds: float = _JOB_PATIENCE_SECONDS
    ) -> None:
        """Remember where it is; nothing is opened or made yet.

        Args:
            path: of the file, which need not exist.
            patience_seconds: how long to wait for another process that is using it.
        """
        self.path = path
        self._patience = patience_seconds
        # The file last found undamaged.
        self._sound: FileIdentity | None = None
        # What could not be written yet.
        self._waiting: tuple[Row, ...] = ()
        self._has_warned = False
        # By device and version, the file and the number of the last row loaded.
        self._loaded: dict[tuple[str, str], tuple[FileIdentity | None, int]] = {}

    def load(self, device: str, tensorflow: str) -> PriceList:
        """Return what was measured on a device with a version of TensorFlow."""
        self._loaded.pop((device, tensorflow), None)
        return self.load_new(device, tensorflow)

    def load_new(self, device: str, tensorflow: str) -> PriceList:
        """Return what was put there since it was last loaded from here."""
        device_and_version = (device, tensorflow)

        def new_rows(reader: sqlite3.Connection) -> list[Row]:
            present = self._identity()
            file, last = self._loaded.get(device_and_version, (None, 0))
            found = _select(
                reader, device_and_version, after=last if file == present else 0
            )
            self._loaded[device_and_version] = (present, max(found, default=last))
            return list(found.values())

        kept = self._attempt(lambda: self._read(new_rows))
        return PriceList(
            row.measured
            for row in (*(kept or ()), *self._waiting)
            if isinstance(row, CostRow)
            and (row.device, row.tensorflow) == device_and_version
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
        with _turn:
            waiting = self._waiting = best_rows((*self._waiting, *rows))
            if self._attempt(lambda: self.put(waiting)) is not None:
                self._waiting = ()

    def correct(self, rows: Sequence[CostRow]) -> None:
        """Keep rows in place of what was measured before, however well."""
        self._attempt(lambda: self.put(rows, always=True))

    def flush(self) -> bool:
        """Write what could not be written before; return whether nothing is left."""
        if self._waiting:
            self.keep(())
        return not self._waiting

    def rows(self) -> list[Row]:
        """Return all costs and verdicts in the file, of every device and version."""
        found = (self._read(_select) or {}).values()
        return [row for row in found if not isinstance(row, Spending)]

    def put(self, rows: Sequence[Row], *, always: bool = False) -> int:
        """Put all rows or none into the file.

        Args:
            rows: of two with one identity the better stays.
            always: whether the new one stays, better or not.

        Returns:
            How many were there before.
        """
        return self._write(
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
        return self._write(lambda writer: writer.execute(statement, values).rowcount)

    def _row(self, identity: Identity) -> Row | None:
        for row in self._waiting:
            if row.identity == identity:
                return row
        return self._attempt(
            lambda: self._read(lambda reader: _known(reader, identity))
        )

    def _attempt(self, work: Callable[[], _T]) -> _T | None:
        """Return what `work` returns; None, and one warning, where the file fails."""
        try:
            return work()
        except (OSError, sqlite3.Error) as error:
            if not self._has_warned:
                self._has_warned = True
                logging.warning(
                    "measured costs cannot be kept in %s and are remembered by this "
                    "program alone: %s",
                    self.path,
                    error,
                )
            return None

    def _read(self, work: Work[_T]) -> _T | None:
        """Return what `work` finds, waiting for no writer; None without a file."""
        return self._transaction("BEGIN", work) if self.path.exists() else None

    def _write(self, work: Work[_T]) -> _T:
        """Have `work` write, all or nothing; return what that returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return self._transaction("BEGIN IMMEDIATE", work)

    def _transaction(self, begin: str, work: Work[_T]) -> _T:
        with _turn:
            file = self._identity()
            try:
                return self._opened(begin, work)
            except sqlite3.DatabaseError as error:
                # Its subclasses say what is wrong with a statement or with the disk.
                if type(error) is not sqlite3.DatabaseError:
                    raise
                self._set_aside(file, error)
                return self._opened(begin, work)

    def _opened(self, begin: str, work: Work[_T]) -> _T:
        connection = sqlite3.connect(
            self.path, timeout=self._patience, isolation_level=None
        )
        # Bytes that are no text spoil their row alone.
        connection.text_factory = bytes
        # Left first, the connection commits, or takes back what failed.
        with contextlib.closing(connection), connection:
            connection.execute(begin)
            if self._sound != (file := self._identity()):
                answer = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
                if answer != b"ok":
                    raise sqlite3.DatabaseError(answer.decode())
                self._sound = file
            connection.execute(_TABLE)
            return work(connection)

    def _identity(self) -> FileIdentity | None:
        if not self.path.exists():
            return None
        status = self.path.stat()
        return (status.st_dev, status.st_ino)

    def _set_aside(self, file: FileIdentity | None, error: Exception) -> None:
        """Rename a damaged file, unless another process has done so meanwhile."""
        with contextlib.suppress(FileNotFoundError), self.path.open("rb") as damaged:
            fcntl.flock(damaged, fcntl.LOCK_EX)
            if self._identity() != file:
                return
            # What is left of a transaction would be applied to the new file.
            Path(f"{self.path}-journal").unlink(missing_ok=True)
            logging.warning(
                "the cost database %s was damaged (%s) and is now %s; costs are "
                "measured anew",
                self.path,
                error,
                self.path.replace(f"{self.path}.broken"),
            )


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
    return next(iter(_select(reader, identity).values()), None)


def _put(writer: sqlite3.Connection, row: Row, always: bool) -> bool:
    """Put a row in unless there is a better one; return whether there was one."""
    known = _known(writer, row.identity)
    if always or better(known, row) is row:
        writer.execute(
            "INSERT OR REPLACE INTO rows (device, tensorflow, subject, body) "
            "VALUES (?, ?, ?, ?)",
            (*row.identity, text_from_row(row)),
        )
    return known is not None
