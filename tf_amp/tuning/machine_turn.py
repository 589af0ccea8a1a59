"""One process of a machine at a time measures: two at once would time each other.

Workers of one job start together and ask for the same prices. The first measures them,
the others find them in the database when their turn comes. Machines that share the
folder over a network do not wait for each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import pathlib
import time
from collections.abc import Iterator
from typing import IO

from tf_amp.tuning.budget import Allowance
from tf_amp.tuning.lock_holder import LOCK_NAME, place, tell_who_measures

_POLL_SECONDS = 0.02


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
