"""One process of a machine at a time measures: two at once would time each other.

So does one thread of a process, which takes this turn first.

Workers of one job start together and ask for the same prices. The first measures them,
the others find them in the database when their turn comes. Machines that share the
folder over a network do not wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import pathlib
import platform
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO

from absl import logging

from grappler_pass.fork_safety import per_process
from tf_amp.errors import NotMeasurableError
from tf_amp.measuring import progress
from tf_amp.measuring.budget import Allowance

_POLL_SECONDS = 0.02
# Who asks for figures waits so long for those at work.
_PATIENCE_SECONDS = 120.0
# The same in all containers of a machine, unlike its name.
_BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
_LONGEST_COMMAND = 60


class _Turn:
    """Of the process; a forked child starts anew, without its parent's lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.file: IO[str] | None = None

    def renew(self) -> None:
        self.lock = threading.Lock()
        if self.file is not None:
            # The lock goes when nobody has the file open any more.
            self.file.close()
            self.file = None


_turn = _Turn()
per_process(_turn.renew)


@contextlib.contextmanager
def process_turn(patience: float) -> Iterator[bool]:
    """Wait until no other thread of this process measures, `patience` seconds at most.

    Yield whether it is this thread's turn.
    """
    lock = _turn.lock
    is_mine = lock.acquire(timeout=patience)
    try:
        yield is_mine
    finally:
        if is_mine:
            lock.release()


@contextlib.contextmanager
def machine_turn(folder: pathlib.Path | None, patience: float) -> Iterator[bool]:
    """Wait until no other process of this machine that shares the folder measures.

    The lock is the operating system's and goes with the process, however that ends.
    Where there can be none (no folder, or one that is read-only), nobody waits. Yield
    whether it is this process' turn.
    """
    try:
        file = _lock_file(folder, "a+")
    except OSError:
        yield True
        return
    with file:
        is_mine = _is_locked(file, fcntl.LOCK_EX, patience)
        if is_mine:
            _turn.file = file
            file.truncate(0)
            file.write(_own_name())
            file.flush()
        try:
            yield is_mine
        finally:
            if is_mine:
                _turn.file = None


@contextlib.contextmanager
def paid_turn(folder: pathlib.Path | None, allowance: Allowance) -> Iterator[bool]:
    """Wait for the machine's turn as `machine_turn` does, at the expense of a graph.

    Who has it now is reported to those that follow the progress.
    """
    with contextlib.ExitStack() as stack:
        with allowance.waiting():
            if progress.is_read() and (other := name_of_holder(folder)):
                progress.note(progress.Waiting(other))
            turn = machine_turn(folder, allowance.remaining())
            is_mine = stack.enter_context(turn)
        yield is_mine


@contextlib.contextmanager
def asked_turn(folder: pathlib.Path | None) -> Iterator[None]:
    """Wait for the turn of the process and of the machine, and say for whom to wait.

    For figures that somebody has asked for, at nobody's expense.

    Raises:
      NotMeasurableError: it has not come in time; the message says who has it.
    """
    with contextlib.ExitStack() as stack:
        if not stack.enter_context(process_turn(_PATIENCE_SECONDS)):
            raise NotMeasurableError(
                "Another thread of this program measures; ask again when it has ended."
            )
        if other := name_of_holder(folder):
            logging.warning("Waiting for %s, which measures on this machine.", other)
        if not stack.enter_context(machine_turn(folder, _PATIENCE_SECONDS)):
            raise NotMeasurableError(
                f"{other or 'Another process'} measures on this machine, and two at "
                "once would time each other; ask again when it has ended."
            )
        yield


def name_of_holder(folder: pathlib.Path | None) -> str:
    """Return the other process that measures here, for people; "": nobody does."""
    try:
        with _lock_file(folder, "r") as file:
            if _is_locked(file, fcntl.LOCK_SH, 0.0):
                return ""
            return file.read() or "another process"
    except OSError:
        return ""


def _lock_file(folder: pathlib.Path | None, mode: str) -> IO[str]:
    """Open the file whose lock is this machine's."""
    if folder is None:
        raise FileNotFoundError("nothing is kept")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"measuring-{_machine()}.lock"
    return path.open(mode, encoding="utf-8", errors="replace")


@functools.cache
def _machine() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def _own_name() -> str:
    """Return this process' number and the end of its command line."""
    command = " ".join(sys.orig_argv)
    if len(command) > _LONGEST_COMMAND:
        command = f"...{command[-_LONGEST_COMMAND:]}"
    return f"process {os.getpid()} ({command})"


def _is_locked(file: IO[str], kind: int, patience: float) -> bool:
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        except OSError:
            # A file system without locks.
            return True
        time.sleep(_POLL_SECONDS)
