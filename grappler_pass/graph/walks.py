"""One walk over whatever leads to other things."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def reached(
    starts: Iterable[T],
    following: Callable[[T], Iterable[T]],
    key: Callable[[T], Any] | None = None,
) -> Iterator[T]:
    """Yield some things and all that is reached from them, nearest first, each once.

    Args:
      starts: yielded themselves.
      following: returns what one of them leads to, once it has been yielded.
      key: returns what two of them are told apart by; None: they can be hashed.
    """
    waiting: deque[T] = deque()
    seen = set()

    def add(things: Iterable[T]) -> None:
        for thing in things:
            mark = thing if key is None else key(thing)
            if mark not in seen:
                seen.add(mark)
                waiting.append(thing)

    add(starts)
    while waiting:
        thing = waiting.popleft()
        yield thing
        add(following(thing))
