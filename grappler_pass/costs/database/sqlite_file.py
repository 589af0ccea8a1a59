"""The file of the cost database: made, opened, and set aside where it is damaged.

It caches what can be measured again, so that nothing is saved out of a damaged file or
one of an earlier version. Another program's database, and one of a later version of
this package, is not written to.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from absl import logging

from grappler_pass.fork_safety import per_process

APPLICATION_ID = int.from_bytes(b"tfAM", "big")
VERSION = 4
# A row that takes the place of another gets a new number, and none is given twice.
_ROWS = """CREATE TABLE rows (
    number INTEGER PRIMARY KEY AUTOINCREMENT, device, tensorflow, subject, body,
    UNIQUE (device, tensorflow, subject)
)"""
_PAGE_BYTES = 4096
_FORK_WAITS_SECONDS = 1.0

_T = TypeVar("_T")
Work = Callable[[sqlite3.Connection], _T]


class SqliteFile:
    """A database at a path; every transaction opens and closes a connection.

    It is checked once; where it is damaged it is set aside, and a new one begun. What
    else goes wrong is raised, as OSError or sqlite3.Error.
    """

    def __init__(self, path: Path, largest_bytes: int, patience: float) -> None:
        """Remember where it is, and for how many seconds to wait for others."""
        self._path = path
        self.patience = patience
        self._largest_pages = max(1, largest_bytes // _PAGE_BYTES)
        self._checked: tuple[int, int] | None = None

    def identity(self) -> tuple[int, int] | None:
        """Return what changes when another file takes the place of this one."""
        if not self._path.exists():
            return None
        status = self._path.stat()
        return (status.st_dev, status.st_ino)

    def read(self, work: Work[_T]) -> _T | None:
        """Return what `work` finds; None where nothing is kept yet."""

        def attempt() -> _T | None:
            if not self._path.exists():
                return None
            with self._opened() as reader:
                reader.execute("BEGIN")
                return work(reader) if self._is_current(reader) else None

        return self._twice_if_damaged(attempt)

    def write(self, work: Work[_T]) -> _T:
        """Have `work` write to it, all or nothing; return what that returns."""

        def attempt() -> _T:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as writer:
                writer.execute(f"PRAGMA max_page_count = {self._largest_pages}")
                writer.execute("BEGIN IMMEDIATE")
                if not self._is_current(writer):
                    _begin_anew(writer)
                done = work(writer)
                writer.execute("COMMIT")
                return done

        return self._twice_if_damaged(attempt)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection; closing it undoes what is not committed."""
        if not _turn.acquire(timeout=self.patience):
            raise TimeoutError(f"{self._path} is in use by another thread")
        try:
            connection = sqlite3.connect(
                self._path, timeout=self.patience, isolation_level=None
            )
            # Bytes that are no text spoil their row alone.
            connection.text_factory = lambda text: str(text, "utf-8", "replace")
            with contextlib.closing(connection):
                yield connection
        finally:
            _turn.release()

    def _is_current(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file holds rows of this version.

        Raises:
            PermissionError: it is somebody else's.
            sqlite3.DatabaseError: it is damaged.
        """
        if not (content := _content(connection)):
            return False
        version = _asked(connection, "user_version")
        is_foreign = _asked(connection, "application_id") != APPLICATION_ID
        if is_foreign or version > VERSION:
            whose = "another program's database"
            whose = whose if is_foreign else "of a later version of tf-amp"
            raise PermissionError(f"{self._path} is {whose}; it is left alone")
        if version < VERSION:
            return False
        if "rows" not in content:
            raise sqlite3.DatabaseError("there is no table of rows")
        if self._checked != self.identity():
            if (answer := _asked(connection, "integrity_check(1)")) != "ok":
                raise sqlite3.DatabaseError(answer)
            self._checked = self.identity()
        return True

    def _twice_if_damaged(self, attempt: Callable[[], _T]) -> _T:
        opened = self.identity()
        try:
            return attempt()
        except sqlite3.DatabaseError as error:
            # Its subclasses say what is wrong with a statement or with the disk.
            if type(error) is not sqlite3.DatabaseError:
                raise
            self._set_aside(opened, error)
            return attempt()

    def _set_aside(self, opened: tuple[int, int] | None, error: Exception) -> None:
        """Rename a damaged file, unless another process has done so meanwhile."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as damaged:
            fcntl.flock(damaged, fcntl.LOCK_EX)
            if self.identity() != opened:
                return
            for suffix in ("-journal", "-wal", "-shm"):
                # What is left of a transaction would be applied to the new file.
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            logging.warning(
                "the cost database %s was damaged (%s) and is now %s; costs are "
                "measured anew",
                self._path,
                error,
                self._path.replace(f"{self._path}.broken"),
            )


def _content(connection: sqlite3.Connection) -> dict[str, str]:
    """Return what is in a database: "table" or what else it is, by name."""
    return dict(connection.execute("SELECT name, type FROM sqlite_master"))


def _asked(connection: sqlite3.Connection, pragma: str) -> Any:
    (answer,) = connection.execute(f"PRAGMA {pragma}").fetchone()
    return answer


def _begin_anew(writer: sqlite3.Connection) -> None:
    """Make an empty file, or one of an earlier version, an empty cost database."""
    for name, kind in _content(writer).items():
        if kind == "table" and not name.startswith("sqlite_"):
            writer.execute(f'DROP TABLE "{name}"')
    writer.execute(_ROWS)
    writer.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    writer.execute(f"PRAGMA user_version = {VERSION}")


# One thread of a process at a time has a connection; in a child that was forked amid
# the turn of another thread, none.
_turn = threading.Lock()
_fork = threading.local()


def _before_fork() -> None:
    _fork.has_turn = _turn.acquire(timeout=_FORK_WAITS_SECONDS)


def _after_fork() -> None:
    if _fork.has_turn:
        _turn.release()


per_process(_after_fork, before=_before_fork, after_in_parent=_after_fork)
