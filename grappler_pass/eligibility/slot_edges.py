"""The float32 edges between slots, both ways, and the list of each slot's node."""

from __future__ import annotations

from typing import NamedTuple

from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView


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
