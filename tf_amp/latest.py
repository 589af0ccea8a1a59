"""What was put in last of much that comes along."""

from __future__ import annotations

from typing import Generic, TypeVar

from grappler_pass.fork_safety import renewed_lock

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Latest(Generic[_Key, _Value]):
    """Values by key, of which the oldest goes where there are too many.

    Threads may read and write at once.
    """

    def __init__(self, most: int) -> None:
        """Hold nothing yet, and never more than `most` values."""
        self._most = most
        self._values: dict[_Key, _Value] = {}
        self._lock = renewed_lock()

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self._values)

    def __contains__(self, key: _Key) -> bool:
        """Return whether there is a value."""
        return key in self._values

    def get(self, key: _Key) -> _Value | None:
        """Return a value; None where there is none, or none any more."""
        return self._values.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value, as the latest."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            while len(self._values) > self._most:
                del self._values[next(iter(self._values))]

    def items(self) -> dict[_Key, _Value]:
        """Return all values, the oldest first."""
        with self._lock:
            return dict(self._values)

    def drop(self, key: _Key) -> None:
        """Keep a value no longer."""
        self._values.pop(key, None)

    def clear(self) -> None:
        """Keep nothing of what is there."""
        self._values.clear()
