"""Comparisons of a tensor with what was selected from it: one rounding for both.

The gradient of a maximum asks which elements equal it. A maximum rounded to 16 bits
equals none of its float32 operands, and the gradient becomes 0 / 0. Where both sides
are rounded they agree again, since rounding keeps order; so the comparison, the
selection, and what lies between them get one color.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from grappler_pass.graph import op_table as table
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Port
from grappler_pass.graph.walks import reached

# Ops that keep every bit, but for a sign.
_MOVEMENTS = (
    table.FORWARDING_OPS
    | table.MERGE_OPS
    | table.VIEW_OPS
    | frozenset(
        """BroadcastTo Gather GatherNd GatherV2 Neg ReverseV2 Slice StridedSlice Tile
        Transpose""".split()
    )
)


def selection_ties(
    view: GraphView, slots: SlotTable, lists: Mapping[int, Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of slots that a comparison with a selected value ties.

    `lists` are the nodes of the tensor list of each that writes or reads one: what a
    list returns was put into it.
    """
    if not any(node.op in table.SELECTING_OPS for node in view.nodes):
        return
    walk = _Walk(view, slots, lists)
    for node in view.nodes:
        if node.op not in table.COMPARING_OPS:
            continue
        own = slots.input_slot(node.index, 0)
        if own == NO_SLOT or slots.dtypes[own] != FLOAT32:
            continue
        for slot in walk.slots_behind(node.inputs[:2]):
            yield own, slot


class _Walk(NamedTuple):
    """Walks back from a comparison to what was selected, through movement and lists."""

    view: GraphView
    slots: SlotTable
    lists: Mapping[int, Sequence[int]]

    def slots_behind(self, operands: Sequence[Port]) -> list[int]:
        """Return the slots on the way to a selection, it included; none if none."""
        ports = self._ports_behind(operands, frozenset())
        selected = [
            p for p in ports if self.view.nodes[p.node].op in table.SELECTING_OPS
        ]
        if not selected:
            return []
        # What the selection reads is where both sides begin.
        begin = frozenset(
            port for p in selected for port in self.view.nodes[p.node].inputs
        )
        on_the_way = self._ports_behind(operands, begin)
        return [self.slots.output_slot(*port) for port in on_the_way]

    def _ports_behind(
        self, operands: Sequence[Port], begin: frozenset[Port]
    ) -> list[Port]:
        """Return ports that carry values of the comparison's operands unchanged."""

        def before(port: Port) -> list[Port]:
            return [p for p in self._sources(port) if p not in begin]

        ports = reached((p for p in operands if p not in begin), before)
        return [
            port
            for port in ports
            if self.view.nodes[port.node].op in table.SELECTING_OPS
            or self._sources(port)
        ]

    def _sources(self, port: Port) -> list[Port]:
        """Return the float32 tensors whose values `port` passes on."""
        node = self.view.nodes[port.node]
        if node.op in _MOVEMENTS:
            return self._float32(node.inputs)
        nodes = (self.view.nodes[i] for i in self.lists.get(port.node, ()))
        return [source for node in nodes for source in self._float32(node.inputs)]

    def _float32(self, ports: Sequence[Port]) -> list[Port]:
        return [
            port
            for port in ports
            if self.slots.output_dtype(*port) == FLOAT32
            and self.slots.output_slot(*port) != NO_SLOT
        ]
