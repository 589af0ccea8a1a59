"""Slots that must share a color: loop variables, lists, products and more.

Each rule yields pairs of slots that agree; what the pairs connect is one group.

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

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.eligibility.regions import connected
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_traits import reserve_input, reserve_output, why_fixed
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.graph.walks import reached

Groups = tuple[tuple[int, ...], ...]
_Pairs = Iterator[tuple[int, int]]

_LOOP_SOURCES = table.ENTER_OPS | table.NEXT_ITERATION_OPS
_HANDLES = frozenset({types_pb2.DT_VARIANT, types_pb2.DT_RESOURCE})
# Ops that pass a list on as it is, or make one of the same type from it.
_CARRIERS = table.PASSING_OPS | {"AddN", "ZerosLike"}
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


class TensorLists(NamedTuple):
    """The slots of lists of tensors: of who makes, writes or reads them.

    Attributes:
      groups: float32 slots of the elements of each list.
      escapes: slots of each list that is read or made where no type can be changed,
        with the name of the node there.
      members: node that writes or reads a list to all nodes of that list.
    """

    groups: Groups = ()
    escapes: Mapping[int, str] = {}
    members: Mapping[int, tuple[int, ...]] = {}

    @classmethod
    def from_view(cls, view: Graph, slots: SlotTable) -> TensorLists:
        """Follow handles; those that lead to one list are joined.

        A list escapes where its handle is read or made by anything that is neither a
        list op nor a carrier: a function call, an argument, a fetch, a list of lists.
        What is stated there about its elements' type cannot be changed.
        """
        if not any(node.op in table.LIST_OPS for node in view.nodes):
            return cls()
        handles = [
            (node, _handles(slots, node))
            for node in view.nodes
            if node.op in table.LIST_OPS or node.op in _CARRIERS
        ]

        def joined() -> Iterator[tuple[Port, Port]]:
            for node, ports in handles:
                for port in ports:
                    if node.op != "IdentityN":
                        yield ports[0], port
                    elif port.node == node.index:
                        yield node.inputs[port.output], port

        list_of = {p: i for i, ports in enumerate(connected(joined())) for p in ports}
        elements: dict[int, list[int]] = {}
        for node, ports in handles:
            if node.op in table.LIST_OPS and ports:
                own = slots.slots_of[node.index]
                elements.setdefault(list_of[ports[0]], []).extend(own)
        escapes: dict[int, str] = {}
        for port in dict.fromkeys(port for _, ports in handles for port in ports):
            if where := _escape_at(view, port):
                escapes.setdefault(list_of[port], where)
        floats = (
            tuple(sorted(slot for slot in own if slots.dtypes[slot] == FLOAT32))
            for own in elements.values()
        )
        groups = tuple(sorted(group for group in floats if len(group) > 1))
        nodes = (
            tuple(dict.fromkeys(slots.node_of[slot] for slot in group))
            for group in groups
        )
        return cls(
            groups,
            {s: escapes[i] for i, own in elements.items() if i in escapes for s in own},
            {node: group for group in nodes for node in group},
        )


def _handles(slots: SlotTable, node: Node) -> list[Port]:
    """Return the inputs and outputs of a node that are handles."""
    i, outputs = node.index, range(slots.output_count(node.index))
    taken = enumerate(node.inputs)
    return [
        *(port for at, port in taken if slots.input_dtype(i, at) in _HANDLES),
        *(Port(i, at) for at in outputs if slots.output_dtype(i, at) in _HANDLES),
    ]


def _escape_at(view: Graph, port: Port) -> str:
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


class _Graph(NamedTuple):
    """What the rules look at."""

    view: Graph
    slots: SlotTable
    lists: OpLists
    of_lists: TensorLists

    def op(self, port: Port) -> str:
        return self.view.nodes[port.node].op

    def through(self, node: Node) -> tuple[int, int]:
        """Return the slots at both ends of the first edge that leads to a node."""
        slots = self.slots
        return slots.input_slot(node.index, 0), slots.output_slot(*node.inputs[0])


def ties_of(
    view: Graph, slots: SlotTable, lists: OpLists, of_lists: TensorLists
) -> tuple[Groups, dict[int, Reason]]:
    """Return the groups of tied float32 slots, and the slots of what escapes.

    A reserve space that is read or made in another graph escapes, as a list does.

    Returns:
      Groups of two and more slots, and per slot that shares its type with what escapes
      the reason, which names the node where it does.
    """
    graph = _Graph(view, slots, lists, of_lists)

    def floats(pairs: Iterable[tuple[int, int]]) -> _Pairs:
        for pair in pairs:
            if NO_SLOT not in pair and all(slots.dtypes[s] == FLOAT32 for s in pair):
                yield pair

    pairs = [(first, slot) for first, *others in of_lists.groups for slot in others]
    for rule in _RULES:
        pairs += floats(rule(graph))
    escapes = {s: Reason(Cause.LIST_ESCAPES, at) for s, at in of_lists.escapes.items()}
    for group in _tied(pairs):
        # Types of the forward and backward kernels that share a reserve space.
        nodes = (view.nodes[i] for i in dict.fromkeys(slots.node_of[s] for s in group))
        ends = [slots.slots_of[n.index][0] for n in nodes if _is_reserve_end(n)]
        pairs += floats((ends[0], slot) for slot in ends)
        if ends and (where := _reserve_escape(graph, group)):
            reason = Reason(Cause.RESERVE_ESCAPES, where)
            escapes.update(dict.fromkeys(ends, reason))
    return _tied(pairs), escapes


def _tied(pairs: Iterable[tuple[int, int]]) -> Groups:
    return tuple(group for group in connected(pairs) if len(group) > 1)


def _loops(graph: _Graph) -> _Pairs:
    """Yield pairs of slots that pass the same loop variable on."""
    slots = graph.slots
    loop_merges: set[int] = set()
    for node in graph.view.nodes:
        if node.op in table.MERGE_OPS:
            sources = [p for p in node.inputs if graph.op(p) in _LOOP_SOURCES]
            if sources:
                loop_merges.add(node.index)
            for port in sources:
                yield slots.input_slot(node.index, 0), slots.output_slot(*port)
    for node in graph.view.nodes if loop_merges else ():
        leaves = node.op in table.EXIT_OPS and (
            graph.op(node.inputs[0]) in table.SWITCH_OPS
        )
        goes_on = node.op in table.SWITCH_OPS and node.inputs[0].node in loop_merges
        if goes_on or leaves:
            yield graph.through(node)


def _anchors(graph: _Graph) -> _Pairs:
    """Yield each branch of a Switch with what control edges depend on it.

    Constant folding makes an Identity of a branch, by whose control edges a constant
    runs in that branch only. Where a cast comes in between, a later run of TensorFlow's
    own optimizers removes the Identity and leaves its control edges dangling.
    """
    view = graph.view
    for node in view.nodes:
        if node.op != "Identity" or graph.op(node.inputs[0]) not in table.SWITCH_OPS:
            continue
        is_read = bool(view.readers(Port(node.index, 0)))
        if not is_read and node.name not in view.item.untouchable:
            yield graph.through(node)


def _products(graph: _Graph) -> _Pairs:
    """Yield the slots of products in pairs (T and TArgs of `_FusedConv2D`).

    A product is what the lists allow, and what can be split, on whatever list it is.
    """
    for node in graph.view.nodes:
        own = graph.slots.slots_of[node.index]
        if len(own) < 2 or graph.slots.has_float32_results(node.index):
            continue
        if graph.lists.list_of(node.op) == table.ALLOW or parts_of(node.proto):
            yield from ((own[0], slot) for slot in own[1:])


def _selections(graph: _Graph) -> _Pairs:
    """Yield the slots of a comparison with those on the way to a selected operand.

    What a list of tensors returns was put into it.
    """
    view, slots = graph.view, graph.slots
    if not any(node.op in table.SELECTING_OPS for node in view.nodes):
        return

    def sources(port: Port) -> list[Port]:
        """Return the float32 tensors whose values a port passes on."""
        moves = view.nodes[port.node].op in _MOVEMENTS
        through = (port.node,) if moves else graph.of_lists.members.get(port.node, ())
        return [
            p
            for i in through
            for p in view.nodes[i].inputs
            if slots.output_dtype(*p) == FLOAT32 and slots.output_slot(*p) != NO_SLOT
        ]

    for node in view.nodes:
        if node.op not in table.COMPARING_OPS:
            continue
        own = slots.input_slot(node.index, 0)
        if own == NO_SLOT or slots.dtypes[own] != FLOAT32:
            continue
        operands = node.inputs[:2]
        passed = reached(operands, sources)
        selected = [p for p in passed if graph.op(p) in table.SELECTING_OPS]
        if not selected:
            continue
        # What the selection reads is where both sides begin.
        begin = {port for p in selected for port in view.nodes[p.node].inputs}

        def within(ports: Iterable[Port], begin: set[Port] = begin) -> list[Port]:
            return [port for port in ports if port not in begin]

        for port in reached(within(operands), lambda port: within(sources(port))):
            if graph.op(port) in table.SELECTING_OPS or sources(port):
                yield own, slots.output_slot(*port)


def _reserves(graph: _Graph) -> _Pairs:
    """Yield the slots at both ends of each edge that a reserve space passes."""
    view, slots = graph.view, graph.slots

    def typed(ports: Iterable[Port | None]) -> list[Port]:
        return [p for p in ports if p is not None and slots.output_slot(*p) != NO_SLOT]

    def neighbors(port: Port) -> Iterator[Port]:
        """Yield the ports that have the same value by way of one node."""
        producer = view.nodes[port.node]
        if producer.op == "IdentityN":
            yield producer.inputs[port.output]
        elif producer.op in table.PASSING_OPS:
            yield from producer.inputs
        for reader in view.readers(port):
            op = view.nodes[reader.node].op
            if op == "IdentityN":
                yield Port(reader.node, reader.input)
            elif op in table.PASSING_OPS:
                yield from view.output_ports(reader.node)

    ends = typed(map(_reserve_port, filter(_is_reserve_end, view.nodes)))
    for port in reached(ends, lambda port: typed(neighbors(port))):
        for reader in view.readers(port):
            yield slots.output_slot(*port), slots.input_slot(*reader)


def _reserve_port(node: Node) -> Port | None:
    """Return the reserve space that a kernel leaves or takes, if it holds anything."""
    attrs = node.proto.attr
    # Reading an absent key would create it.
    trains = "is_training" not in attrs or attrs["is_training"].b
    if node.device_type == "CPU" or not trains:
        return None
    left, taken = reserve_output(node.op), reserve_input(node.op)
    if left is not None:
        return Port(node.index, left)
    return None if taken is None else node.inputs[taken]


def _is_reserve_end(node: Node) -> bool:
    return reserve_output(node.op) is not None or reserve_input(node.op) is not None


def _reserve_escape(graph: _Graph, group: Iterable[int]) -> str:
    """Return the node where a group's reserve space leaves the graph, if it does."""
    for slot in group:
        node = graph.view.nodes[graph.slots.node_of[slot]]
        is_listed = graph.lists.list_of(node.op) is not None
        # Others decide the type of what such a node gives or takes.
        is_fixed = node.name in graph.view.item.untouchable or why_fixed(
            node.op, is_listed
        )
        if is_fixed and not _is_reserve_end(node):
            return node.name
        if slot in graph.of_lists.escapes:
            return graph.of_lists.escapes[slot]
    return ""


_RULES: tuple[Callable[[_Graph], _Pairs], ...] = (
    _selections,
    _loops,
    _products,
    _anchors,
    _reserves,
)
