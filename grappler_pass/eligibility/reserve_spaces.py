"""Reserve spaces of cuDNN: what a forward kernel leaves for its backward one.

Only a kernel of the same type can make sense of them, so the two agree on their type,
and what passes a reserve space on has the type that it was made in. Where one comes
from another graph, or goes there, its kernels stay as they were traced: the other
graph has a plan of its own. On a CPU, and in inference, reserve spaces are empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import PASSING_OPS
from grappler_pass.graph.op_traits import reserve_input, reserve_output, why_fixed
from grappler_pass.graph.type_slots import NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node, Port
from grappler_pass.graph.walks import reached

Groups = tuple[tuple[int, ...], ...]


def edge_ties(view: GraphView, slots: SlotTable) -> Iterator[tuple[int, int]]:
    """Yield the slots at both ends of each edge that a reserve space passes."""
    for port in _reserve_ports(view, slots):
        for reader in view.readers(port):
            yield slots.output_slot(*port), slots.input_slot(*reader)


def end_ties(
    view: GraphView, slots: SlotTable, groups: Groups
) -> Iterator[tuple[int, int]]:
    """Yield the types of the forward and backward nodes that share a reserve space.

    `groups` are tied slots, those of `edge_ties` among them.
    """
    for group in groups:
        ends = _ends(view, slots, group)
        yield from ((ends[0], slot) for slot in ends[1:])


def escapes(
    view: GraphView,
    slots: SlotTable,
    lists: OpLists,
    groups: Groups,
    known: Mapping[int, str],
) -> Iterator[tuple[int, str]]:
    """Yield the types whose reserve space leaves the graph, and the node where.

    `known` are slots of lists of tensors that escape, with the node where they do.
    """

    def outside(slot: int) -> str:
        node = view.nodes[slots.node_of[slot]]
        fixed = not _is_end(node) and _is_fixed(view, lists, node)
        return node.name if fixed else known.get(slot, "")

    for group in groups:
        ends = _ends(view, slots, group)
        where = next(filter(None, map(outside, group)), "") if ends else ""
        yield from ((slot, where) for slot in ends if where)


def _ends(view: GraphView, slots: SlotTable, group: Iterable[int]) -> list[int]:
    """Return the types of the kernels whose slots a group holds."""
    nodes = dict.fromkeys(slots.node_of[slot] for slot in group)
    return [slots.slots_of[node][0] for node in nodes if _is_end(view.nodes[node])]


def _is_fixed(view: GraphView, lists: OpLists, node: Node) -> bool:
    """Return whether somebody else decides the type of what a node gives or takes."""
    if node.name in view.item.untouchable:
        return True
    return bool(why_fixed(node.op, lists.list_of(node.op) is not None))


def _is_end(node: Node) -> bool:
    return reserve_output(node.op) is not None or reserve_input(node.op) is not None


def _reserve_ports(view: GraphView, slots: SlotTable) -> tuple[Port, ...]:
    """Return the ports that reserve spaces pass, between their two ends."""

    def typed(ports: Iterable[Port | None]) -> list[Port]:
        return [p for p in ports if p is not None and slots.output_slot(*p) != NO_SLOT]

    ends = typed(_own_port(node) for node in view.nodes if _is_end(node))
    return tuple(reached(ends, lambda port: typed(_neighbors(view, port))))


def _own_port(node: Node) -> Port | None:
    attrs = node.proto.attr
    # Reading an absent key would create it.
    trains = "is_training" not in attrs or attrs["is_training"].b
    if node.device_type == "CPU" or not trains:
        return None
    left, taken = reserve_output(node.op), reserve_input(node.op)
    if left is not None:
        return Port(node.index, left)
    return None if taken is None else node.inputs[taken]


def _neighbors(view: GraphView, port: Port) -> Iterator[Port]:
    """Yield the ports that have the same value by way of one node."""
    producer = view.nodes[port.node]
    if producer.op == "IdentityN":
        yield producer.inputs[port.output]
    elif producer.op in PASSING_OPS:
        yield from producer.inputs
    for reader in view.readers(port):
        op = view.nodes[reader.node].op
        if op == "IdentityN":
            yield Port(reader.node, reader.input)
        elif op in PASSING_OPS:
            yield from view.output_ports(reader.node)
