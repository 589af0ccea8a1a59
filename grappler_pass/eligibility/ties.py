"""Slots that must share a color: loop variables, lists, products and more.

A loop variable's Enter, Merge, Switch, NextIteration and Exit pass one value around. A
list's elements have one type, which its maker and all its readers and writers state.
A product's operands have one type even where its OpDef would let them differ. What
is compared with a selected element of itself is rounded as that element is
(`selections`). What only anchors control edges to a branch reads it uncast. A kernel
understands the `reserve_spaces` of its own type only.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility import reserve_spaces
from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.numerics.selections import selection_ties
from grappler_pass.eligibility.reachability import Groups
from grappler_pass.eligibility.reasons import Cause, Reason
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import (
    ALLOW,
    ENTER_OPS,
    EXIT_OPS,
    LIST_OPS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
    PASSING_OPS,
    SWITCH_OPS,
)
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node, Port

_LOOP_SOURCES = ENTER_OPS | NEXT_ITERATION_OPS
_HANDLES = frozenset({types_pb2.DT_VARIANT, types_pb2.DT_RESOURCE})

# Ops that pass a list on as it is, or make one of the same type from it.
_CARRIERS = PASSING_OPS | {"AddN", "ZerosLike"}


# Slots of lists in pairs, and those of lists that escape, each with where.
ListTies = tuple[list[tuple[int, int]], dict[int, str]]


def all_ties(
    view: GraphView, slots: SlotTable, lists: OpLists, of_lists: ListTies
) -> tuple[tuple[tuple[int, ...], ...], dict[int, Reason]]:
    """Return the groups of tied float32 slots, and the slots of what escapes.

    A list escapes where its handle is read or made by anything that is neither a list
    op nor a carrier: a function call, an argument, a fetch, a list of lists. What is
    stated there about its elements' type cannot be changed. So does a reserve space
    that is read or made in another graph.

    Args:
      view: the graph.
      slots: of `view`.
      lists: for the low dtype.
      of_lists: what `list_ties` found in `view`.

    Returns:
      Groups of two and more slots, and per slot that shares its type with what escapes
      the reason, which names the node where it does.
    """
    pairs, lost = list(of_lists[0]), of_lists[1]
    pairs += selection_ties(view, slots, tied_groups(pairs, slots))
    pairs += loop_ties(view, slots)
    pairs += product_ties(view, slots, lists)
    pairs += anchor_ties(view, slots)
    pairs += reserve_spaces.edge_ties(view, slots)
    groups = tied_groups(pairs, slots)
    pairs += reserve_spaces.end_ties(view, slots, groups)
    escapes = {slot: Reason(Cause.LIST_ESCAPES, at) for slot, at in lost.items()}
    for slot, at in reserve_spaces.escapes(view, slots, lists, groups, lost):
        escapes[slot] = Reason(Cause.RESERVE_ESCAPES, at)
    return tied_groups(pairs, slots), escapes


def loop_ties(view: GraphView, slots: SlotTable) -> Iterator[tuple[int, int]]:
    """Yield pairs of slots that pass the same loop variable on."""
    loop_merges: set[int] = set()
    for node in view.nodes:
        if node.op in MERGE_OPS:
            sources = [p for p in node.inputs if _op(view, p) in _LOOP_SOURCES]
            if sources:
                loop_merges.add(node.index)
            for port in sources:
                yield slots.input_slot(node.index, 0), slots.output_slot(*port)
    if not loop_merges:
        return
    for node in view.nodes:
        if node.op in SWITCH_OPS and node.inputs[0].node in loop_merges:
            yield _through(slots, node)
        elif node.op in EXIT_OPS and _op(view, node.inputs[0]) in SWITCH_OPS:
            yield _through(slots, node)


def anchor_ties(view: GraphView, slots: SlotTable) -> Iterator[tuple[int, int]]:
    """Yield each branch of a Switch with what hangs control edges on it.

    Constant folding makes an Identity of a branch, by whose control edges a constant
    runs in that branch only. Where a cast comes in between, a later run of TensorFlow's
    own optimizers removes the Identity and leaves its control edges dangling.
    """
    for node in view.nodes:
        if node.op != "Identity" or _op(view, node.inputs[0]) not in SWITCH_OPS:
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
        if lists.list_of(node.op) == ALLOW or parts_of(node.proto):
            yield from ((own[0], slot) for slot in own[1:])


def list_ties(view: GraphView, slots: SlotTable) -> ListTies:
    """Return the slots of each list in pairs, and the slots of lists that escape."""
    if not any(node.op in LIST_OPS for node in view.nodes):
        return [], {}
    handles = _Handles(view, slots)
    pairs: list[tuple[int, int]] = []
    escaped: dict[int, str] = {}
    for members, where in handles.lists():
        pairs.extend((members[0], slot) for slot in members[1:])
        if where:
            escaped.update((slot, where) for slot in members)
    return pairs, escaped


def list_members(of_lists: ListTies, slots: SlotTable) -> dict[int, tuple[int, ...]]:
    """Return for each node that writes or reads a list all nodes of that list."""
    pairs, _ = of_lists
    found: dict[int, tuple[int, ...]] = {}
    for group in tied_groups(pairs, slots):
        nodes = tuple(dict.fromkeys(slots.node_of[slot] for slot in group))
        found.update((node, nodes) for node in nodes)
    return found


class _Handles:
    """Ports that carry handles, grouped by the list they lead to."""

    def __init__(self, view: GraphView, slots: SlotTable) -> None:
        self._view = view
        self._slots = slots
        self._numbers: dict[Port, int] = {}
        # Ports first, in order of discovery, then nodes: a node joins its ports.
        self._pairs: list[tuple[int, Port]] = []
        for node in view.nodes:
            if node.op in LIST_OPS or node.op in _CARRIERS:
                self._visit(node)
        self._groups = self._joined()

    def _visit(self, node: Node) -> None:
        """Note which handle ports `node` unites: all of a list op's, or one by one."""
        slots = self._slots
        count = slots.output_count(node.index)
        ports = [
            (i, port)
            for i, port in enumerate(node.inputs)
            if slots.input_dtype(node.index, i) in _HANDLES
        ]
        ports += [
            (i, Port(node.index, i))
            for i in range(count)
            if slots.output_dtype(node.index, i) in _HANDLES
        ]
        for position, port in ports:
            self._numbers.setdefault(port, len(self._numbers))
            lane = position if node.op == "IdentityN" else 0
            self._pairs.append((self._vertex(node.index, lane), port))

    def _vertex(self, node: int, lane: int) -> int:
        # IdentityN keeps its lanes separate; no op has as many as a million.
        return node + lane * len(self._view.nodes)

    def _joined(self) -> Groups:
        vertices: dict[int, int] = {}
        for vertex, _ in self._pairs:
            vertices.setdefault(vertex, len(self._numbers) + len(vertices))
        self._vertices = vertices
        groups = Groups(len(self._numbers) + len(vertices))
        for vertex, port in self._pairs:
            groups.join(self._numbers[port], vertices[vertex])
        return groups

    def lists(self) -> Iterator[tuple[list[int], str]]:
        """Yield the float32 slots of each list, and where it escapes (or empty)."""
        members: dict[int, list[int]] = {}
        for node in self._view.nodes:
            if node.op in LIST_OPS and node.index in self._vertices:
                leader = self._groups.leader(self._vertices[node.index])
                own = self._slots.slots_of[node.index]
                members.setdefault(leader, []).extend(own)
        escapes = self._escapes()
        for leader, found in members.items():
            if found:
                yield found, escapes.get(leader, "")

    def _escapes(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for port, number in self._numbers.items():
            where = self._escape_at(port)
            if where:
                found.setdefault(self._groups.leader(number), where)
        return found

    def _escape_at(self, port: Port) -> str:
        """Return the name of a node that makes or takes this handle its own way."""
        readers = [reader.node for reader in self._view.readers(port)]
        for i in (port.node, *readers):
            node = self._view.nodes[i]
            if node.op not in LIST_OPS and node.op not in _CARRIERS:
                return node.name
            if node.name in self._view.item.untouchable:
                return node.name
            if node.op in LIST_OPS and self._holds_handles(node):
                return node.name
        return ""

    def _holds_handles(self, node: Node) -> bool:
        """Return whether the elements of `node`'s list are handles themselves."""
        attr = node.proto.attr
        return "element_dtype" in attr and attr["element_dtype"].type in _HANDLES


def tied_groups(
    pairs: list[tuple[int, int]], slots: SlotTable
) -> tuple[tuple[int, ...], ...]:
    """Return the groups that follow from pairs; only float32 slots are members."""
    groups = Groups(len(slots.slots))
    for first, second in pairs:
        if NO_SLOT in (first, second):
            continue
        if slots.dtypes[first] == FLOAT32 == slots.dtypes[second]:
            groups.join(first, second)
    return groups.larger_than_one()
