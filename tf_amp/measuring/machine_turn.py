"""One process of a machine at a time measures: two at once would time each other.

So does one thread of a process; it takes this turn first, as closing the lock's file in
one thread would release the lock of another.

Workers of one job start together and ask for the same prices. The first measures them,
the others find them in the database when their turn comes. Machines that share the
folder over a network do not wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import IO

from absl import logging

from grappler_pass.fork_safety import per_process
from tf_amp.errors import NotMeasurableError
from tf_amp.measuring.budget import Allowance
from tf_amp.measuring.lock_holder import (
    LOCK_NAME,
    name_of_holder,
    place,
    tell_who_measures,
)

_POLL_SECONDS = 0.02
# Who asks for figures waits so long for those at work.
_PATIENCE_SECONDS = 120.0


class _Turn:
    """Of the process; a forked child starts anew."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.lock = threading.Lock()


_turn = _Turn()
per_process(_turn.renew)


@contextlib.contextmanager
def process_turn(patience: float) -> Iterator[bool]:
    """Wait until no other thread of this process measures, `patience` seconds at most.

    Yields:
      Whether it is this thread's turn.
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

    The lock is the operating system's and goes with the process, however that ends; a
    forked child does not inherit it. Where there can be none (no folder, or one that is
    read-only), nobody waits.

    Args:
      folder: of the database.
      patience: seconds to wait.

    Yields:
      Whether it is this process' turn.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(_lock_file(folder))
        except OSError:
            yield True
            return
        yield _is_locked(file, patience)


@contextlib.contextmanager
def paid_turn(folder: pathlib.Path | None, allowance: Allowance) -> Iterator[bool]:
    """Wait for the machine's turn as `machine_turn` does, at the expense of a graph.

    Who has it now is told to those that follow the progress.
    """
    with contextlib.ExitStack() as stack:
        with allowance.waiting():
            tell_who_measures(folder)
            turn = machine_turn(folder, allowance.remaining())
            is_mine = stack.enter_context(turn)
        yield is_mine


@contextlib.contextmanager
def asked_turn(folder: pathlib.Path | None) -> Iterator[None]:
    """Wait for the turn of the process and of the machine, and say for whom to wait.

    For figures that somebody has asked for, at nobody's expense.

    Args:
      folder: of the database.

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


def _lock_file(folder: pathlib.Path | None) -> IO[bytes]:
    if folder is None:
        raise FileNotFoundError("nothing is kept")
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / LOCK_NAME).open("ab")


def _is_locked(file: IO[bytes], patience: float) -> bool:
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place())
            return True
        except (BlockingIOError, PermissionError):
            if time.monotonic() >= end:
                return False
        except OSError:
            # A file system without locks.
            return True
        time.sleep(_POLL_SECONDS)
