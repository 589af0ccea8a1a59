"""What lies at the path of the cost database, told without SQLite.

SQLite may leave a journal beside what it opens, which a file of somebody else must be
spared. Not to be asked while this process has a connection to the file: closing it
here would drop the connection's locks.
"""

from __future__ import annotations

import enum
from pathlib import Path

from grappler_pass.costs import tables

# Files that belong to a database while it is in use, or after a crash.
SIDECARS = ("-wal", "-journal", "-shm")

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100


class State(enum.Enum):
    """Whether and why a file may be used, or not."""

    EMPTY = enum.auto()
    OURS = enum.auto()
    BROKEN = enum.auto()
    FOREIGN = enum.auto()
    OTHER_VERSION = enum.auto()


def state_of(path: Path) -> State:
    """Tell by the header what a file is; one of ours may still be damaged inside."""
    header = _header(path)
    if not header:
        return State.EMPTY
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        return State.BROKEN
    if _number(header, 68) != tables.APPLICATION_ID:
        return State.FOREIGN
    is_known = _number(header, 60) == tables.VERSION
    return State.OURS if is_known else State.OTHER_VERSION


def is_cut_off(path: Path) -> bool:
    """Tell whether a database is shorter than it says, and no journal makes up."""
    header = _header(path)
    # One more than 32767 is written as 1.
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    is_short = path.stat().st_size < _number(header, 28) * page_bytes
    return is_short and not journals(path)


def journals(path: Path) -> list[Path]:
    """Return the files that hold what was, or is to be, written to a database."""
    candidates = (Path(f"{path}-wal"), Path(f"{path}-journal"))
    return [each for each in candidates if each.exists() and each.stat().st_size]


def identity_of(path: Path) -> tuple[int, int]:
    """Return what changes when another file takes the place of this one."""
    status = path.stat()
    return (status.st_dev, status.st_ino)


def _header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return b""


def _number(header: bytes, place: int) -> int:
    return int.from_bytes(header[place : place + 4], "big")
