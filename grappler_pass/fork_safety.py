"""What a forked child must not take over from its parent.

A thread of the parent that held a lock when it forked is not there to release it, as
when loaders of data fork. The only place that has the interpreter report forks.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

Reset = TypeVar("Reset", bound=Callable[[], object])


class RenewedLock:
    """A lock that one thread may take several times, and no child waits for in vain."""

    def __init__(self) -> None:
        """Be free."""
        self._lock = threading.RLock()
        self._is_taken = False

    def __enter__(self) -> None:
        """Take it, as soon as no other thread has it."""
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        """Give it back."""
        self._lock.release()

    @contextlib.contextmanager
    def taken_within(self, seconds: float) -> Iterator[None]:
        """Take it, or go on without it after so long."""
        lock = self._lock
        is_taken = lock.acquire(timeout=seconds)
        try:
            yield
        finally:
            if is_taken:
                lock.release()

    @contextlib.contextmanager
    def taken_if_free(self) -> Iterator[bool]:
        """Take it unless a thread, this one too, has it so; yield whether it did."""
        lock = self._lock
        if not lock.acquire(blocking=False):
            yield False
            return
        is_first = not self._is_taken
        self._is_taken = True
        try:
            yield is_first
        finally:
            self._is_taken = not is_first
            lock.release()

    def renew(self) -> None:
        """Be free, unless the thread that has forked holds it: it goes on with that."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock, self._is_taken = threading.RLock(), False


_locks: weakref.WeakSet[RenewedLock] = weakref.WeakSet()


def renewed_lock() -> RenewedLock:
    """Return a lock that a forked child finds free of its parent's other threads."""
    lock = RenewedLock()
    _locks.add(lock)
    return lock


def per_process(reset: Reset, **around: Callable[[], object]) -> Reset:
    """Have a forked child call a function before it goes on; a decorator, too.

    Args:
      reset: what makes state the child's own.
      around: `before` and `after_in_parent`, for what the parent must do as well.
    """
    os.register_at_fork(after_in_child=reset, **around)
    return reset


@per_process
def _renew_locks() -> None:
    for lock in _locks:
        lock.renew()


if TYPE_CHECKING:
    cached_attribute = functools.cached_property
else:

    class cached_attribute:
        """What a method returns, kept in the object, and computed without a lock.

        Of threads that ask at once each may compute it; all get what is kept first. In
        Python 3.10 and 3.11 `functools.cached_property` holds a lock meanwhile, one for
        all objects of a class, for which a forked child would wait forever.
        """

        def __init__(self, compute: Callable[[Any], Any]) -> None:
            """Take the method, as a decorator does."""
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            """Note under which name the object keeps it."""
            self._name = name

        def __get__(self, owner: Any, kind: type | None = None) -> Any:
            """Compute it; Python asks no more once the object keeps it."""
            if owner is None:
                return self
            return vars(owner).setdefault(self._name, self._compute(owner))
