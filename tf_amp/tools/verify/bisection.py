"""Find the few culprits among many suspects, by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def culprits_among(
    suspects: Sequence[_T], holds_with: Callable[[Sequence[_T]], bool]
) -> tuple[_T, ...] | None:
    """Return a smallest set of suspects that must be cleared; None: all do not suffice.

    Looked for is the shortest beginning of the sequence that fixes it when cleared: its
    last member is a culprit. With that one cleared for good the next is looked for
    before it. So k culprits among n suspects take about k * (log2(n) + 1) tries, not
    counting the two that tell whether there is anything to look for.

    Args:
      suspects: in order.
      holds_with: returns whether all is well with some suspects cleared; clearing more
        must not do harm.

    Returns:
      The culprits in order; without any one of them it does not hold.
    """
    if not holds_with(suspects):
        return None
    found: list[_T] = []
    end = len(suspects)
    while not holds_with(found):
        end = _shortest_beginning(suspects, end, found, holds_with)
        found.insert(0, suspects[end - 1])
        end -= 1
    return tuple(found)


def _shortest_beginning(
    suspects: Sequence[_T],
    end: int,
    found: Sequence[_T],
    holds_with: Callable[[Sequence[_T]], bool],
) -> int:
    """Return the least length up to `end` that holds, given that `end` does."""
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        if holds_with([*suspects[:middle], *found]):
            high = middle
        else:
            low = middle
    return high
