"""Which tensors of a graph have a range that bears on a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grappler_pass.costs.calls import TensorSpec
from grappler_pass.costs.work.op_work import works_of
from grappler_pass.eligibility.exclusions import differentiated
from grappler_pass.eligibility.propagation import constrain
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import NEXT_ITERATION_OPS, SWITCH_OPS
from grappler_pass.graph.shapes import Shapes, known_shape
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node, Port
from grappler_pass.pricing.seconds import call_of
from tf_amp.config.amp_config import LOW_DTYPES
from tf_amp.config.ranges import TensorRange
from tf_amp.tracing.stamp_reader import forward_names

_REDUCTIONS = frozenset("AvgPool BiasAddGrad Mean Prod SegmentSum Sum".split())


def seen_tensors(view: GraphView, shapes: Shapes) -> Mapping[str, TensorRange]:
    """Return the tensors that may be in 16 bits, by their names in the graph.

    They are what operations make or read that may go low in either type. Nothing has
    been seen of them yet.
    """
    slots = SlotTable.from_view(view)
    ports = _ports(view, slots, _eligible(view, slots, shapes))
    made = (_unseen(view, slots, shapes, port, names) for port, names in ports.items())
    return {seen.name: seen for seen in made}


def _eligible(view: GraphView, slots: SlotTable, shapes: Shapes) -> Sequence[bool]:
    """Say of every slot whether a list lets it go low, whatever that costs."""
    found = [False] * len(slots.slots)
    for low_dtype in LOW_DTYPES:
        lists = OpLists.for_dtype(low_dtype)
        limits = constrain(view, shapes, lists, low_dtype)
        found = [a or b for a, b in zip(found, limits.eligible, strict=True)]
    return found


def _ports(
    view: GraphView, slots: SlotTable, eligible: Sequence[bool]
) -> dict[Port, tuple[str, ...]]:
    """Return the tensors in question, each with the names of those that read it."""

    def is_eligible(slot: int) -> bool:
        return slot != NO_SLOT and eligible[slot]

    made = (
        Port(node.index, output)
        for node in view.nodes
        for output in range(slots.output_count(node.index))
        if is_eligible(slots.output_slot(node.index, output))
    )
    reads = (
        (port, node.name)
        for node in view.nodes
        for position, port in enumerate(node.inputs)
        if is_eligible(slots.input_slot(node.index, position))
    )
    readers: dict[Port, list[str]] = {port: [] for port in made}
    for port, name in reads:
        readers.setdefault(port, []).append(name)
    return {
        port: tuple(dict.fromkeys(names))
        for port, names in readers.items()
        if slots.output_dtype(*port) == FLOAT32
        and view.readers(port)
        # A loop is known by the edge from its end to its beginning.
        and view.nodes[port.node].op not in NEXT_ITERATION_OPS
    }


def _unseen(
    view: GraphView,
    slots: SlotTable,
    shapes: Shapes,
    port: Port,
    names: tuple[str, ...],
) -> TensorRange:
    node = view.nodes[port.node]
    is_gradient = bool(differentiated(node.name) or forward_names(node.proto))
    return TensorRange(
        node=node.name,
        output=port.output,
        op=node.op,
        readers=names,
        is_gradient=is_gradient,
        depth=_depth(view, slots, shapes, node),
    )


def _depth(view: GraphView, slots: SlotTable, shapes: Shapes, node: Node) -> int | None:
    """Return how many numbers one element of a node's output is the sum of."""

    def spec(port: Port) -> TensorSpec:
        return TensorSpec(known_shape(shapes, view, port), "float32")

    call = call_of(node, slots, spec)
    if any(spec.shape is None for spec in (*call.inputs[:1], *call.outputs[:1])):
        return None
    if node.op in _REDUCTIONS and call.inputs and call.outputs:
        return max(call.inputs[0].elements // max(call.outputs[0].elements, 1), 1)
    if node.op in SWITCH_OPS:
        return None
    try:
        works = works_of(call, "float32")
    except (ValueError, IndexError):
        return None
    return next((work.product.k for work in works if work.product), None)
