"""A node of a graph as costs see it."""

from __future__ import annotations

from collections.abc import Callable

from grappler_pass.costs import OpCall, TensorSpec, attrs_from_node_def
from grappler_pass.graph.type_slots import SlotTable
from grappler_pass.graph.view import Node, Port


def call_of(node: Node, slots: SlotTable, spec: Callable[[Port], TensorSpec]) -> OpCall:
    """Return a node's op, attributes, and what `spec` says of its tensors."""
    outputs = range(slots.output_count(node.index))
    return OpCall(
        node.op,
        attrs_from_node_def(node.proto),
        tuple(map(spec, node.inputs)),
        tuple(spec(Port(node.index, output)) for output in outputs),
    )
