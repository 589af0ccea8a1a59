"""The float32 edges between slots, and walks over them and other numbered vertices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView
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
    start_of = [UNREACHED] * len(neighbors)
    waiting = list(dict.fromkeys(starts))
    for start in waiting:
        start_of[start] = start
    while waiting:
        vertex = waiting.pop()
        cause = start_of[vertex]
        for target in neighbors[vertex]:
            if start_of[target] == UNREACHED and enters[target]:
                start_of[target] = cause
                if crosses is None or crosses[target]:
                    waiting.append(target)
    return start_of


def first_of(*walks: Sequence[int]) -> list[int]:
    """Return for every vertex the start of the first walk that reaches it."""
    return [
        next((start for start in starts if start != UNREACHED), UNREACHED)
        for starts in zip(*walks, strict=True)
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


class SlotEdges(NamedTuple):
    """Slots one float32 tensor away, and on which list each is.

    Attributes:
      readers: slot to slots that read what it governs.
      sources: slot to slots that govern what it reads.
      lists: slot to the name of its node's list; None where it is on none.
    """

    readers: list[list[int]]
    sources: list[list[int]]
    lists: list[str | None]

    @classmethod
    def from_view(
        cls,
        view: GraphView,
        slots: SlotTable,
        lists: OpLists,
        ties: tuple[tuple[int, ...], ...],
    ) -> SlotEdges:
        """Collect the edges; tied slots count as reading each other."""
        readers: list[list[int]] = [[] for _ in slots.slots]
        sources: list[list[int]] = [[] for _ in slots.slots]
        dtypes = slots.dtypes
        for node in view.nodes:
            for position, port in enumerate(node.inputs):
                reader = slots.input_slot(node.index, position)
                if reader == NO_SLOT or dtypes[reader] != FLOAT32:
                    continue
                source = slots.output_slot(*port)
                if source != NO_SLOT and dtypes[source] == FLOAT32:
                    readers[source].append(reader)
                    sources[reader].append(source)
        for hub, *members in ties:
            for edges in (readers, sources):
                edges[hub].extend(members)
                for member in members:
                    edges[member].append(hub)
        places = [lists.place_of(node.proto).list_name for node in view.nodes]
        return cls(readers, sources, [places[node] for node in slots.node_of])

    def on(self, *lists: str) -> list[bool]:
        """Return for every slot whether its node is on one of these lists."""
        return [name in lists for name in self.lists]
