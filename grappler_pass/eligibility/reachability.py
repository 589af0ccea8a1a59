"""Walks over numbered vertices: one function that every rule of propagation uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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


class Groups:
    """Disjoint sets of numbered things, merged pair by pair."""

    def __init__(self, count: int) -> None:
        """Start with every thing in a set of its own."""
        self._parent = list(range(count))

    def leader(self, member: int) -> int:
        """Return the member that stands for the whole set."""
        parent = self._parent
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    def join(self, first: int, second: int) -> None:
        """Merge two sets; the smaller leader stays."""
        a, b = self.leader(first), self.leader(second)
        self._parent[max(a, b)] = min(a, b)

    def larger_than_one(self) -> tuple[tuple[int, ...], ...]:
        """Return the sets of two and more members, members in order."""
        found: dict[int, list[int]] = {}
        for member, parent in enumerate(self._parent):
            if parent != member:
                leader = self.leader(member)
                found.setdefault(leader, [leader]).append(member)
        return tuple(tuple(found[leader]) for leader in sorted(found))
