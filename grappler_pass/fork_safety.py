"""What a forked child must not take over from its parent.

A thread of the parent that held a lock when it forked is not there to release it.
The only place that has the interpreter tell of forks.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable


class RenewedLock:
    """A lock that one thread may take several times, and no child waits for in vain."""

    def __init__(self) -> None:
        """Be free."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        """Take it, as soon as no other thread has it."""
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        """Give it back."""
        self._lock.release()

    def renew(self) -> None:
        """Be free, unless the thread that has forked holds it: it goes on with that."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[RenewedLock] = weakref.WeakSet()


def renewed_lock() -> RenewedLock:
    """Return a lock that a forked child finds free of its parent's other threads."""
    lock = RenewedLock()
    _locks.add(lock)
    return lock


def per_process(reset: Callable[[], object], **around: Callable[[], object]) -> None:
    """Have a forked child call a function before it goes on.

    Args:
      reset: what makes state the child's own.
      around: `before` and `after_in_parent`, for what the parent must do as well.
    """
    os.register_at_fork(after_in_child=reset, **around)


def _renew_locks() -> None:
    for lock in _locks:
        lock.renew()


per_process(_renew_locks)
