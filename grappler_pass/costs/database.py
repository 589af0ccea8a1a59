"""What was measured on this machine, kept between runs and shared by processes.

Keyed by device and TensorFlow version: figures of another one are never used. A job
goes on whatever happens to the file: what cannot be kept there is remembered in memory
and kept as soon as it can be, and one warning says why.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from absl import logging

from grappler_pass.costs import tables
from grappler_pass.costs.price_list import Measured, PriceList
from grappler_pass.costs.records import (
    AnyRow,
    CostRow,
    SpendingRow,
    Verdict,
    VerdictRow,
    flaw_of,
)
from grappler_pass.costs.sqlite_file import NothingKeptError, SqliteFile
from grappler_pass.costs.tables import COSTS, SPENDING, VERDICTS, Row, Table

# A job waits for other processes this long, and less once it was in vain.
JOB_PATIENCE_SECONDS = 0.4
_SPENT_PATIENCE_SECONDS = 0.05
_LARGEST_BYTES = 256 << 20

_T = TypeVar("_T")
_K = TypeVar("_K", VerdictRow, SpendingRow)


def costs_path(cache_dir: Path) -> Path:
    """Return where the database lies in the user's cache folder."""
    return cache_dir / "costs.sqlite3"


class CostDatabase:
    """Measured costs and verdicts in a file that threads and processes may share.

    What loads and keeps costs, verdicts and spending never raises on account of the
    file. The others raise OSError or sqlite3.Error.
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
        self._file = SqliteFile(path, largest_bytes)
        self._full_patience = self._patience = patience_seconds
        # What could not be written yet, by identity.
        self._waiting: dict[tuple[str, ...], AnyRow] = {}
        self._warned: set[str] = set()
        # By device and version, the file and the number of the last row loaded.
        self._read: dict[tuple[str, str], tuple[object, int]] = {}

    def load(self, device: str, tensorflow: str) -> PriceList:
        """Return what was measured on a device with a version of TensorFlow."""
        self._read.pop((device, tensorflow), None)
        return self.load_new(device, tensorflow)

    def load_new(self, device: str, tensorflow: str) -> PriceList:
        """Return what was put there since it was last loaded from here."""
        where = {"device": device, "tensorflow": tensorflow}

        def read() -> list[CostRow]:
            with self._file.reading(self._patience) as reader:
                file, number = self._read.get((device, tensorflow), (None, 0))
                last, present = COSTS.last(reader), self._file.identity()
                if file != present or number > last:
                    # Not the file it was, or one that was cleared.
                    number = 0
                rows = list(COSTS.select(reader, where, after=number))
                self._read[device, tensorflow] = (present, last)
                return rows

        rows = [*(self._attempt(read) or ()), *self._waiting_in(CostRow)]
        return PriceList(
            row.measured
            for row in rows
            if (row.device, row.tensorflow) == (device, tensorflow)
        )

    def keep(self, device: str, tensorflow: str, rows: Iterable[Measured]) -> None:
        """Keep rows; of two for one probe and dtype the better supported stays."""
        self._keep([CostRow(device, tensorflow, measured) for measured in rows])

    def correct(self, device: str, tensorflow: str, rows: Iterable[Measured]) -> None:
        """Keep rows in place of what was measured before, however well."""
        corrected = [CostRow(device, tensorflow, measured) for measured in rows]
        self._attempt(lambda: self._written(corrected, always=True))

    def verdict(self, device: str, tensorflow: str, fingerprint: str) -> Verdict | None:
        """Return how a comparison ended on a device, if there was one."""
        row = self._row(VERDICTS, (device, tensorflow, fingerprint))
        return None if row is None else row.verdict

    def keep_verdict(
        self, device: str, tensorflow: str, fingerprint: str, verdict: Verdict
    ) -> None:
        """Keep how a comparison ended; of two for one graph the newer stays."""
        self._keep([VerdictRow(device, tensorflow, fingerprint, verdict)])

    def spent(self, device: str, tensorflow: str, fingerprint: str) -> float:
        """Return the seconds that finding out about a graph has taken so far."""
        row = self._row(SPENDING, (device, tensorflow, fingerprint))
        return 0.0 if row is None else row.seconds

    def keep_spent(
        self, device: str, tensorflow: str, fingerprint: str, seconds: float
    ) -> None:
        """Keep what a graph has taken; of two figures the larger stays."""
        self._keep([SpendingRow(device, tensorflow, fingerprint, seconds)])

    def rows(self) -> list[Row]:
        """Return all costs and verdicts in the file, of every device and version."""

        def read() -> list[Row]:
            with self._file.reading(self._patience) as reader:
                return [*COSTS.select(reader), *VERDICTS.select(reader)]

        try:
            return _twice_if_damaged(read)
        except NothingKeptError:
            return []

    def put(self, rows: Sequence[AnyRow]) -> int:
        """Keep all rows or none; return how many of them were there before."""
        return _twice_if_damaged(lambda: self._written(rows))

    def clear(self, where: dict[str, str] | None = None) -> int:
        """Remove every row, or those with these values of "device", "tensorflow".

        Returns:
            How many were removed.
        """

        def write() -> int:
            with self._file.writing(self._patience) as writer:
                return sum(tables.remove(writer, t, where) for t in tables.TABLES)

        return _twice_if_damaged(write)

    @property
    def is_all_kept(self) -> bool:
        """Whether nothing is left that could not be written yet."""
        return not self._waiting

    def flush(self) -> None:
        """Write what could not be written before, if it can be now; never raises."""
        if self._waiting:
            self._keep(())

    def _row(self, table: Table[_K], key: tuple[str, str, str]) -> _K | None:
        where = dict(zip(table.key, key, strict=True))

        def read() -> list[_K]:
            with self._file.reading(self._patience) as reader:
                return list(table.select(reader, where))

        rows = [*self._waiting_in(table.row_type), *(self._attempt(read) or ())]
        return next((row for row in rows if row.identity[:3] == key), None)

    def _keep(self, rows: Sequence[AnyRow]) -> None:
        for row in rows:
            if (flaw := flaw_of(row)) is None:
                known = self._waiting.get(row.identity)
                self._waiting[row.identity] = tables.merged(known, row)
            else:
                self._warn_once(f"not a cost to be kept: {flaw}")
        waiting = dict(self._waiting)
        if self._attempt(lambda: self._written(waiting.values())) is None:
            return
        self._patience = self._full_patience
        for identity, row in waiting.items():
            # Another thread may have put a better one there meanwhile.
            if self._waiting.get(identity) is row:
                self._waiting.pop(identity, None)

    def _written(self, rows: Iterable[AnyRow], *, always: bool = False) -> int:
        with self._file.writing(self._patience) as writer:
            return tables.put(writer, rows, always=always)

    def _waiting_in(self, kind: type[_T]) -> Iterator[_T]:
        return (row for row in list(self._waiting.values()) if isinstance(row, kind))

    def _attempt(self, work: Callable[[], _T]) -> _T | None:
        """Return what `work` returns; None, and one warning, where the file fails."""
        try:
            return _twice_if_damaged(work)
        except NothingKeptError:
            return None
        except (OSError, sqlite3.Error) as error:
            self._patience = min(self._patience, _SPENT_PATIENCE_SECONDS)
            self._warn_once(
                f"measured costs cannot be kept in {self.path} and are remembered by "
                f"this program alone: {error}"
            )
            return None

    def _warn_once(self, message: str) -> None:
        kind = message[:20]
        if kind not in self._warned:
            self._warned.add(kind)
            logging.warning("%s", message)


def _twice_if_damaged(work: Callable[[], _T]) -> _T:
    """Return what `work` returns, with a new file where it finds a damaged one."""
    try:
        return work()
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise
        return work()
