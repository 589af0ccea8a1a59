"""The file of the cost database: made, opened, and set aside where it is damaged.

It caches what can be measured again, so that nothing is saved out of a damaged file.
Another program's database, and one of a later version of this package, is not written
to.

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
from collections.abc import Iterator
from pathlib import Path

from absl import logging

from grappler_pass.costs import tables
from grappler_pass.errors import AmpError
from grappler_pass.fork_safety import per_process

_PAGE_BYTES = 4096
_FORK_WAITS_SECONDS = 1.0
# Files that belong to a database while it is in use, or after a crash.
_SIDECARS = ("-journal", "-wal", "-shm")


class UnusableCostsError(AmpError, OSError):
    """The file holds something that is not to be written to; says what."""


class NothingKeptError(AmpError, FileNotFoundError):
    """There is nothing to read yet."""


class SqliteFile:
    """A database at a path; every transaction opens and closes a connection.

    It is checked once, and as far as it is read.
    What goes wrong is raised, as OSError or sqlite3.Error. A file that turns out to be
    damaged is out of the way by then, so that a second attempt begins a new one.
    """

    def __init__(self, path: Path, largest_bytes: int) -> None:
        """Remember where it is; nothing is opened yet."""
        self._path = path
        self._largest_pages = max(1, largest_bytes // _PAGE_BYTES)
        self._checked: tuple[int, int] | None = None

    def identity(self) -> tuple[int, int]:
        """Return what changes when another file takes the place of this one."""
        status = self._path.stat()
        return (status.st_dev, status.st_ino)

    @contextlib.contextmanager
    def reading(self, patience: float) -> Iterator[sqlite3.Connection]:
        """Yield a connection to look at; waits at most about `patience` seconds.

        Raises:
            NothingKeptError: there is no file, or nothing of this version in it.
        """
        if not self._path.exists():
            raise NothingKeptError(f"{self._path} does not exist")
        with self._opened("rw", patience) as reader:
            if not self._is_current(reader):
                raise NothingKeptError(f"{self._path} holds nothing of this version")
            yield reader

    @contextlib.contextmanager
    def writing(self, patience: float) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction: all is kept on leaving, or nothing."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._opened("rwc", patience) as writer:
            writer.execute(f"PRAGMA max_page_count = {self._largest_pages}")
            writer.execute("BEGIN IMMEDIATE")
            if not self._is_current(writer):
                tables.make(writer)
            yield writer
            writer.execute("COMMIT")

    @contextlib.contextmanager
    def _opened(self, mode: str, patience: float) -> Iterator[sqlite3.Connection]:
        """Yield a connection; closing it undoes what is not committed."""
        address = f"{self._path.absolute().as_uri()}?mode={mode}"
        with _turn.taken(self._path, patience):
            opened = self.identity() if self._path.exists() else None
            connection = sqlite3.connect(
                address, timeout=patience, isolation_level=None, uri=True
            )
            try:
                with contextlib.closing(connection):
                    yield connection
            except sqlite3.DatabaseError as error:
                # Its subclasses say what is wrong with a statement or with the disk.
                if type(error) is sqlite3.DatabaseError:
                    self._set_aside(opened, error)
                raise

    def _is_current(self, connection: sqlite3.Connection) -> bool:
        """Tell whether the file holds tables of this version.

        Raises:
            UnusableCostsError: it is somebody else's.
            sqlite3.DatabaseError: it is damaged.
        """
        found = connection.execute("SELECT name FROM sqlite_master").fetchall()
        if not found:
            return False
        if _pragma(connection, "application_id") != tables.APPLICATION_ID:
            raise UnusableCostsError(
                f"{self._path} is another program's database; it is left alone"
            )
        version = _pragma(connection, "user_version")
        if version > tables.VERSION:
            raise UnusableCostsError(
                f"{self._path} is of a later version of tf-amp; it is left alone"
            )
        if version < tables.VERSION:
            return False
        if not {name for (name,) in found} >= set(tables.NAMES):
            raise sqlite3.DatabaseError("tables are missing")
        if self._checked != self.identity():
            answers = connection.execute("PRAGMA quick_check(1)").fetchall()
            if answers != [("ok",)]:
                raise sqlite3.DatabaseError(*answers[0])
            self._checked = self.identity()
        return True

    def _set_aside(self, opened: tuple[int, int] | None, error: Exception) -> None:
        """Rename a damaged file, unless another process has done so meanwhile."""
        with self._path.open("rb") as damaged:
            fcntl.flock(damaged, fcntl.LOCK_EX)
            if self._path.exists() and self.identity() == opened:
                self._rename(error)

    def _rename(self, error: Exception) -> None:
        for suffix in _SIDECARS:
            # What is left of a transaction would be applied to the new file.
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        aside = Path(f"{self._path}.broken")
        self._path.replace(aside)
        logging.warning(
            "the cost database %s was damaged (%s) and is now %s; costs are measured "
            "anew",
            self._path,
            error,
            aside,
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)


class _Turn:
    """One thread at a time; none any more in a child forked amid another's turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_lost = self._is_held_by_fork = False

    @contextlib.contextmanager
    def taken(self, path: Path, patience: float) -> Iterator[None]:
        if self._is_lost:
            raise TimeoutError(f"{path} was in use while this process was forked")
        lock = self._lock
        if not lock.acquire(timeout=patience):
            raise TimeoutError(f"{path} is in use by another thread")
        try:
            yield
        finally:
            lock.release()

    def before_fork(self) -> None:
        self._is_held_by_fork = self._lock.acquire(timeout=_FORK_WAITS_SECONDS)

    def after_in_parent(self) -> None:
        if self._is_held_by_fork:
            self._is_held_by_fork = False
            self._lock.release()

    def after_in_child(self) -> None:
        self._is_lost |= not self._is_held_by_fork
        self._is_held_by_fork = False
        self._lock = threading.Lock()


_turn = _Turn()
per_process(
    _turn.after_in_child,
    before=_turn.before_fork,
    after_in_parent=_turn.after_in_parent,
)
