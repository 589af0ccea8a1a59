"""Walks over numbered vertices: one function that every rule of propagation uses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

from grappler_pass.graph.walks import reached

UNREACHED = -1

Neighbors = Sequence[Sequence[int]]


def spread(
    starts: Iterable[int],
    neighbors: Neighbors,
    enters: Sequence[bool],
    crosses: Sequence[bool] | None = None,
) -> list[int]:
    """Return for every vertex the start it is reached from, or UNREACHED.

    Args:
      starts: reached by definition, whatever `enters` says of them.
      neighbors: vertex to vertices one step away.
      enters: whether a vertex may be reached.
      crosses: whether the walk goes on from a reached vertex that is no start; None
        for everywhere.
    """
    origin = [UNREACHED] * len(neighbors)
    waiting = list(dict.fromkeys(starts))
    for start in waiting:
        origin[start] = start
    while waiting:
        vertex = waiting.pop()
        cause = origin[vertex]
        for target in neighbors[vertex]:
            if origin[target] == UNREACHED and enters[target]:
                origin[target] = cause
                if crosses is None or crosses[target]:
                    waiting.append(target)
    return origin


def first_of(*walks: Sequence[int]) -> list[int]:
    """Return for every vertex the origin by the first walk that reaches it."""
    return [
        next((origin for origin in origins if origin != UNREACHED), UNREACHED)
        for origins in zip(*walks, strict=True)
    ]


_Member = TypeVar("_Member", int, tuple[int, int])


def connected(pairs: Iterable[tuple[_Member, _Member]]) -> list[tuple[_Member, ...]]:
    """Return the sets of what pairs connect, they and their members in order."""
    neighbors: dict[_Member, list[_Member]] = defaultdict(list)
    for first, second in pairs:
        neighbors[first].append(second)
        neighbors[second].append(first)
    found: list[tuple[_Member, ...]] = []
    seen: set[_Member] = set()
    for start in sorted(neighbors):
        if start not in seen:
            found.append(tuple(sorted(reached([start], neighbors.__getitem__))))
            seen.update(found[-1])
    return found
