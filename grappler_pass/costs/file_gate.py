"""Who may use a database file at the moment: threads, processes, and a fork.

SQLite keeps what it knows of its locks and of shared memory by process, so a child
that is forked while a connection is open would believe to hold its parent's locks.
Therefore a connection lives no longer than a transaction, threads take turns, and a
fork waits for the turn to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from grappler_pass.fork_safety import per_process

_FORK_WAITS_SECONDS = 1.0
_POLL_SECONDS = 0.005


class _Turn:
    """One thread at a time; `broken` in a child forked amid another thread's turn."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.broken = False
        self._held_by_fork = False

    def before_fork(self) -> None:
        self._held_by_fork = self.lock.acquire(timeout=_FORK_WAITS_SECONDS)

    def after_in_parent(self) -> None:
        if self._held_by_fork:
            self._held_by_fork = False
            self.lock.release()

    def after_in_child(self) -> None:
        self.broken = self.broken or not self._held_by_fork
        self._held_by_fork = False
        self.lock = threading.Lock()


_turn = _Turn()
per_process(
    _turn.after_in_child,
    before=_turn.before_fork,
    after_in_parent=_turn.after_in_parent,
)


@contextlib.contextmanager
def shared(path: Path, patience: float) -> Iterator[None]:
    """Use the file at `path` beside other processes.

    Raises:
        TimeoutError: it was not free within `patience` seconds.
    """
    with _own_turn(path, patience), contextlib.ExitStack() as stack:
        # Where no lock can be had, nobody can take the file away either.
        with contextlib.suppress(_NoLock):
            stack.enter_context(_file_lock(path, fcntl.LOCK_SH, patience))
        yield


@contextlib.contextmanager
def alone(path: Path, patience: float) -> Iterator[None]:
    """Use the file at `path` while no other process does, to put another in place.

    Raises:
        OSError: it was not free within `patience` seconds, or cannot be locked.
    """
    with _own_turn(path, patience), _file_lock(path, fcntl.LOCK_EX, patience):
        yield


class _NoLock(OSError):
    """The folder or its file system admits no lock."""


@contextlib.contextmanager
def _own_turn(path: Path, patience: float) -> Iterator[None]:
    if _turn.broken:
        raise TimeoutError(f"{path} was in use while this process was forked")
    lock = _turn.lock
    if not lock.acquire(timeout=patience):
        raise TimeoutError(f"{path} is in use by another thread")
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _file_lock(path: Path, kind: int, patience: float) -> Iterator[None]:
    deadline = time.monotonic() + patience
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _NoLock(error.errno, error.strerror, error.filename) from error
    try:
        while not _try_lock(descriptor, kind, path):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{path} is in use by another process")
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise _NoLock(error.errno, error.strerror, str(path)) from error
    return True
