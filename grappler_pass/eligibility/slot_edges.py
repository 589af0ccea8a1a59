"""The float32 edges between slots, both ways, and the list of each slot's node."""

from __future__ import annotations

import dataclasses

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.eligibility.reachability import Neighbors
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, CLEAR, DENY, INFER
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView


@dataclasses.dataclass(frozen=True, eq=False)
class SlotEdges:
    """Slots one float32 tensor away, and the lists as one flag per slot.

    Attributes:
      readers: slot to slots that read what it governs.
      sources: slot to slots that govern what it reads.
      allow: per slot, whether its node is on the allow list; likewise the others.
      infer: likewise.
      deny: likewise.
      clear: likewise.
    """

    readers: Neighbors
    sources: Neighbors
    allow: list[bool]
    infer: list[bool]
    deny: list[bool]
    clear: list[bool]

    @classmethod
    def from_view(
        cls,
        view: GraphView,
        slots: SlotTable,
        lists: OpLists,
        ties: tuple[tuple[int, ...], ...],
    ) -> SlotEdges:
        """Collect the edges; tied slots count as reading each other."""
        count = len(slots.slots)
        readers: list[list[int]] = [[] for _ in range(count)]
        sources: list[list[int]] = [[] for _ in range(count)]
        input_slot, output_slot, dtypes = (
            slots.input_slot,
            slots.output_slot,
            slots.dtypes,
        )
        for node in view.nodes:
            for position, port in enumerate(node.inputs):
                reader = input_slot(node.index, position)
                if reader == NO_SLOT or dtypes[reader] != FLOAT32:
                    continue
                source = output_slot(*port)
                if source != NO_SLOT and dtypes[source] == FLOAT32:
                    readers[source].append(reader)
                    sources[reader].append(source)
        for group in ties:
            hub = group[0]
            for member in group[1:]:
                readers[hub].append(member)
                readers[member].append(hub)
                sources[hub].append(member)
                sources[member].append(hub)
        places = [lists.place_of(node.proto).list_name for node in view.nodes]
        listed = [places[node] for node in slots.node_of]
        return cls(
            readers,
            sources,
            [name == ALLOW for name in listed],
            [name == INFER for name in listed],
            [name == DENY for name in listed],
            [name == CLEAR for name in listed],
        )

    @cached_attribute
    def allow_or_clear(self) -> list[bool]:
        """Per slot, whether its node is on the allow or the clear list."""
        return [a or b for a, b in zip(self.allow, self.clear, strict=True)]

    @cached_attribute
    def infer_or_clear(self) -> list[bool]:
        """Per slot, whether its node is on the infer or the clear list."""
        return [a or b for a, b in zip(self.infer, self.clear, strict=True)]

    @property
    def both_ways(self) -> Neighbors:
        """Readers and sources together."""
        return [
            [*readers, *sources]
            for readers, sources in zip(self.readers, self.sources, strict=True)
        ]
