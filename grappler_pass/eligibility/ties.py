"""Slots that must share a color: loop variables, lists, products and more.

A loop variable's Enter, Merge, Switch, NextIteration and Exit pass one value around. A
list's elements have one type, which its maker and all its readers and writers state.
A product's operands have one type even where its OpDef would let them differ. What
is compared with a selected element of itself is rounded as that element is: the
gradient of a maximum asks which elements equal it, and a maximum rounded to 16 bits
equals none of its float32 operands, so that the gradient becomes 0 / 0. Where both
sides are rounded they agree again, since rounding keeps order; so the comparison, the
selection, and what lies between them get one color.

What only anchors control edges to a branch reads it uncast.

A kernel of cuDNN leaves a reserve space for its backward one. Only a kernel of the same
type can make sense of it, so the two agree on their type, and what passes a reserve
space on has the type that it was made in. Where one comes from another graph, or goes
there, its kernels stay as they were traced: the other graph has a plan of its own. On a
CPU, and in inference, reserve spaces are empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.eligibility.regions import connected
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import PASSING_OPS
from grappler_pass.graph.op_traits import reserve_input, reserve_output, why_fixed
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node, Port
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


def reserve_escapes(
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


_LOOP_SOURCES = table.ENTER_OPS | table.NEXT_ITERATION_OPS
_HANDLES = frozenset({types_pb2.DT_VARIANT, types_pb2.DT_RESOURCE})

# Ops that pass a list on as it is, or make one of the same type from it.
_CARRIERS = table.PASSING_OPS | {"AddN", "ZerosLike"}


# Slots of lists in pairs, and those of lists that escape, each with where.
ListTies = tuple[list[tuple[int, int]], dict[int, str]]


def all_ties(
    view: GraphView,
    slots: SlotTable,
    lists: OpLists,
    of_lists: ListTies,
    members: Mapping[int, Sequence[int]],
) -> tuple[tuple[tuple[int, ...], ...], dict[int, Reason]]:
    """Return the groups of tied float32 slots, and the slots of what escapes.

    A list escapes where its handle is read or made by anything that is neither a list
    op nor a carrier: a function call, an argument, a fetch, a list of lists. What is
    stated there about its elements' type cannot be changed. So does a reserve space
    that is read or made in another graph.

    Returns:
      Groups of two and more slots, and per slot that shares its type with what escapes
      the reason, which names the node where it does.
    """
    pairs, lost = list(of_lists[0]), of_lists[1]
    pairs += selection_ties(view, slots, members)
    pairs += loop_ties(view, slots)
    pairs += product_ties(view, slots, lists)
    pairs += anchor_ties(view, slots)
    pairs += edge_ties(view, slots)
    groups = tied_groups(pairs, slots)
    pairs += end_ties(view, slots, groups)
    escapes = {slot: Reason(Cause.LIST_ESCAPES, at) for slot, at in lost.items()}
    for slot, at in reserve_escapes(view, slots, lists, groups, lost):
        escapes[slot] = Reason(Cause.RESERVE_ESCAPES, at)
    return tied_groups(pairs, slots), escapes


def loop_ties(view: GraphView, slots: SlotTable) -> Iterator[tuple[int, int]]:
    """Yield pairs of slots that pass the same loop variable on."""
    loop_merges: set[int] = set()
    for node in view.nodes:
        if node.op in table.MERGE_OPS:
            sources = [p for p in node.inputs if _op(view, p) in _LOOP_SOURCES]
            if sources:
                loop_merges.add(node.index)
            for port in sources:
                yield slots.input_slot(node.index, 0), slots.output_slot(*port)
    if not loop_merges:
        return
    for node in view.nodes:
        if node.op in table.SWITCH_OPS and node.inputs[0].node in loop_merges:
            yield _through(slots, node)
        elif (
            node.op in table.EXIT_OPS and _op(view, node.inputs[0]) in table.SWITCH_OPS
        ):
            yield _through(slots, node)


def anchor_ties(view: GraphView, slots: SlotTable) -> Iterator[tuple[int, int]]:
    """Yield each branch of a Switch with what hangs control edges on it.

    Constant folding makes an Identity of a branch, by whose control edges a constant
    runs in that branch only. Where a cast comes in between, a later run of TensorFlow's
    own optimizers removes the Identity and leaves its control edges dangling.
    """
    for node in view.nodes:
        if node.op != "Identity" or _op(view, node.inputs[0]) not in table.SWITCH_OPS:
            continue
        is_read = bool(view.readers(Port(node.index, 0)))
        if not is_read and node.name not in view.item.untouchable:
            yield _through(slots, node)


def _op(view: GraphView, port: Port) -> str:
    return view.nodes[port.node].op


def _through(slots: SlotTable, node: Node) -> tuple[int, int]:
    return slots.input_slot(node.index, 0), slots.output_slot(*node.inputs[0])


def product_ties(
    view: GraphView, slots: SlotTable, lists: OpLists
) -> Iterator[tuple[int, int]]:
    """Yield the slots of products in pairs (T and TArgs of `_FusedConv2D`).

    A product is what the lists allow, and what can be split, on whatever list it is.
    """
    for node in view.nodes:
        own = slots.slots_of[node.index]
        if len(own) < 2 or slots.has_float32_results(node.index):
            continue
        if lists.list_of(node.op) == table.ALLOW or parts_of(node.proto):
            yield from ((own[0], slot) for slot in own[1:])


def list_ties(view: GraphView, slots: SlotTable) -> ListTies:
    """Return the slots of each list in pairs, and the slots of lists that escape.

    Ports that carry handles are grouped by the list they lead to.
    """
    if not any(node.op in table.LIST_OPS for node in view.nodes):
        return [], {}
    handles = [
        (node, _handles(slots, node))
        for node in view.nodes
        if node.op in table.LIST_OPS or node.op in _CARRIERS
    ]
    of_one_list = (
        (node.inputs[port.output] if node.op == "IdentityN" else ports[0], port)
        for node, ports in handles
        for port in ports
        if node.op != "IdentityN" or port.node == node.index
    )
    list_of = {p: i for i, group in enumerate(connected(of_one_list)) for p in group}
    members: dict[int, list[int]] = {}
    escapes: dict[int, str] = {}
    for node, ports in handles:
        if node.op in table.LIST_OPS and ports:
            own = slots.slots_of[node.index]
            members.setdefault(list_of[ports[0]], []).extend(own)
    for port in dict.fromkeys(port for _, ports in handles for port in ports):
        if where := _escape_at(view, port):
            escapes.setdefault(list_of[port], where)
    pairs: list[tuple[int, int]] = []
    escaped: dict[int, str] = {}
    for number, found in members.items():
        pairs.extend((found[0], slot) for slot in found[1:])
        if number in escapes:
            escaped.update(dict.fromkeys(found, escapes[number]))
    return pairs, escaped


def _handles(slots: SlotTable, node: Node) -> list[Port]:
    outputs = range(slots.output_count(node.index))
    return [
        *(
            port
            for i, port in enumerate(node.inputs)
            if slots.input_dtype(node.index, i) in _HANDLES
        ),
        *(
            Port(node.index, i)
            for i in outputs
            if slots.output_dtype(node.index, i) in _HANDLES
        ),
    ]


def _escape_at(view: GraphView, port: Port) -> str:
    """Return the name of a node that makes or takes this handle its own way."""
    for i in (port.node, *(reader.node for reader in view.readers(port))):
        node = view.nodes[i]
        if node.op not in table.LIST_OPS and node.op not in _CARRIERS:
            return node.name
        if node.name in view.item.untouchable:
            return node.name
        attr = node.proto.attr
        # A list of lists.
        if node.op in table.LIST_OPS and "element_dtype" in attr:
            if attr["element_dtype"].type in _HANDLES:
                return node.name
    return ""


def list_members(of_lists: ListTies, slots: SlotTable) -> dict[int, tuple[int, ...]]:
    """Return for each node that writes or reads a list all nodes of that list."""
    pairs, _ = of_lists
    found: dict[int, tuple[int, ...]] = {}
    for group in tied_groups(pairs, slots):
        nodes = tuple(dict.fromkeys(slots.node_of[slot] for slot in group))
        found.update((node, nodes) for node in nodes)
    return found


def tied_groups(
    pairs: list[tuple[int, int]], slots: SlotTable
) -> tuple[tuple[int, ...], ...]:
    """Return the groups that follow from pairs; only float32 slots are members."""
    dtypes = slots.dtypes
    known = (
        (first, second)
        for first, second in pairs
        if NO_SLOT not in (first, second) and dtypes[first] == FLOAT32 == dtypes[second]
    )
    return tuple(group for group in connected(known) if len(group) > 1)
