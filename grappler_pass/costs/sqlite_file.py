"""The file of the cost database: opening, checking, making, and mending it.

What is found at the path decides: nothing is made into a database; one of ours is
checked once per process; one that is damaged, or no SQLite at all, is put aside whole,
and what is still readable goes into a new one; somebody else's database, and one of
another version of this package, is never written to.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import logging

from grappler_pass.costs import file_gate, tables
from grappler_pass.costs.file_states import (
    SIDECARS,
    State,
    identity_of,
    is_cut_off,
    journals,
    state_of,
)
from grappler_pass.costs.file_systems import journal_mode
from grappler_pass.costs.records import AnyRow

_PAGE_BYTES = 4096


class CostsUnusable(OSError):
    """The file holds something that is not to be written to; says what."""


class NothingKept(FileNotFoundError):
    """There is nothing to read yet."""


_HANDS_OFF = {
    State.FOREIGN: "{} is another program's database; it is left alone",
    State.OTHER_VERSION: "{} is of another version of tf-amp; it is left alone",
}


class SqliteFile:
    """A database at a path; every transaction opens and closes a connection.

    What goes wrong is raised, as OSError or sqlite3.Error.
    """

    def __init__(self, path: Path, largest_bytes: int) -> None:
        """Remember where it is; nothing is opened yet."""
        self._path = path
        self._largest_pages = max(1, largest_bytes // _PAGE_BYTES)
        self._checked: tuple[int, int] | None = None

    @contextlib.contextmanager
    def reading(self, patience: float) -> Iterator[sqlite3.Connection]:
        """Yield a connection to look at; waits at most about `patience` seconds.

        Raises:
            NothingKept: there is no file, or an empty one.
        """
        self._prepare(patience, create=False)
        with file_gate.shared(self._path, patience), _look(self._path, patience) as it:
            yield it

    @contextlib.contextmanager
    def writing(self, patience: float) -> Iterator[sqlite3.Connection]:
        """Yield a connection in a transaction: all is kept on leaving, or nothing."""
        self._prepare(patience, create=True)
        with (
            file_gate.shared(self._path, patience),
            _transaction(self._path, "mode=rw", patience) as writer,
        ):
            writer.execute(f"PRAGMA max_page_count = {self._largest_pages}")
            yield writer

    def check_again(self) -> None:
        """Examine the whole file before its next use."""
        self._checked = None

    def _prepare(self, patience: float, *, create: bool) -> None:
        """See to it that there is a sound database, or raise."""
        with file_gate.shared(self._path, patience):
            state = self._examine(patience)
        if state in _HANDS_OFF:
            raise CostsUnusable(_HANDS_OFF[state].format(self._path))
        if state is State.OURS:
            return
        if state is State.EMPTY and not create:
            raise NothingKept(f"{self._path} does not exist or is empty")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with file_gate.alone(self._path, patience):
            # Another process may have done it while this one waited.
            state = self._examine(patience)
            if state is State.EMPTY:
                _create(self._path, patience)
            elif state is State.BROKEN:
                _rebuild(self._path, patience)

    def _examine(self, patience: float) -> State:
        state = state_of(self._path)
        if state is not State.OURS or identity_of(self._path) == self._checked:
            return state
        if is_cut_off(self._path):
            return State.BROKEN
        with _look(self._path, patience) as reader:
            if not _is_sound(reader):
                return State.BROKEN
        self._checked = identity_of(self._path)
        return state


def _is_sound(reader: sqlite3.Connection) -> bool:
    try:
        answers = reader.execute("PRAGMA quick_check(1)").fetchall()
        found = reader.execute("SELECT name FROM sqlite_master").fetchall()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return False
    expected = {table.name for table in tables.TABLES}
    return answers == [("ok",)] and {name for (name,) in found} >= expected


def _open(path: Path, flags: str, patience: float) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?{flags}"
    return sqlite3.connect(address, timeout=patience, isolation_level=None, uri=True)


@contextlib.contextmanager
def _transaction(
    path: Path, flags: str, patience: float
) -> Iterator[sqlite3.Connection]:
    """Yield a connection that commits on leaving; closing it undoes what is open."""
    with contextlib.closing(_open(path, flags, patience)) as writer:
        if flags == "mode=rw":
            _choose_journal(writer, journal_mode(path))
        writer.execute("BEGIN IMMEDIATE")
        yield writer
        writer.execute("COMMIT")


def _choose_journal(writer: sqlite3.Connection, mode: str) -> None:
    if mode != "wal":
        # A database that came from a local disk must not share memory here.
        writer.execute("PRAGMA locking_mode = EXCLUSIVE")
    # While others use it, it stays as it is.
    with contextlib.suppress(sqlite3.OperationalError):
        writer.execute(f"PRAGMA journal_mode = {mode}")


@contextlib.contextmanager
def _look(path: Path, patience: float) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads, also where nothing can be written."""
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(
            contextlib.closing(_open(path, "mode=rw", patience))
        )
        try:
            reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise
            reader = stack.enter_context(_snapshot(path))
        except sqlite3.DatabaseError:
            # Damaged: whoever looks will see.
            pass
        yield reader


@contextlib.contextmanager
def _snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to the file as it is, or to a copy where a journal waits."""
    waiting = journals(path)
    if not waiting:
        with contextlib.closing(_open(path, "mode=ro&immutable=1", 0.0)) as reader:
            yield reader
        return
    with tempfile.TemporaryDirectory() as folder:
        for each in (path, *waiting):
            shutil.copyfile(each, Path(folder) / each.name)
        copy = _open(Path(folder) / path.name, "mode=rw", 0.0)
        with contextlib.closing(copy):
            yield copy


def _create(path: Path, patience: float, rows: Sequence[AnyRow] = ()) -> int:
    """Make a database, unless it is there; return how many rows were put in."""
    # With the journal that a new file has: its header must say whose it is at once.
    with _transaction(path, "mode=rwc", patience) as writer:
        if not writer.execute("SELECT name FROM sqlite_master").fetchall():
            tables.make(writer)
        known = tables.put(writer, rows)
    return len(rows) - known


def _rebuild(path: Path, patience: float) -> None:
    """Put a new database with what can be read in the place of a damaged one.

    Whenever it is interrupted, the next attempt finds what it needs.
    """
    with _snapshot(path) as reader:
        readable = tables.readable_rows(reader)
    new, aside = Path(f"{path}.new"), _free_name(path)
    if not _is_ready(new):
        _remove(new)
    saved = _create(new, patience, readable)
    _link(path, aside)
    # A journal left behind would be applied to the new database, so it goes first.
    for suffix in SIDECARS:
        with contextlib.suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    new.replace(path)
    logging.warning(
        "the cost database %s was damaged: what was there is now %s; of its rows %d "
        "could be saved",
        path,
        aside,
        saved,
    )


def _is_ready(new: Path) -> bool:
    """Tell whether an earlier attempt was interrupted after it had saved the rows."""
    if state_of(new) is not State.OURS:
        return False
    with _look(new, 0.0) as reader:
        return _is_sound(reader)


def _remove(path: Path) -> None:
    for suffix in (*SIDECARS, ""):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _link(path: Path, aside: Path) -> None:
    try:
        aside.hardlink_to(path)
    except OSError:
        # Not every file system has links.
        shutil.copyfile(path, aside)


def _free_name(path: Path) -> Path:
    names = (Path(f"{path}.broken{number or ''}") for number in itertools.count())
    return next(name for name in names if not name.exists())
