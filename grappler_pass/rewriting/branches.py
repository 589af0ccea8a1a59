"""Make branches of a lowered graph cost little: no Switches, no equal reads."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import STAMP
from grappler_pass.graph.editing import name_in, texts_of
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS
from grappler_pass.graph.view import Graph, Item

_BOUND = CONTROL_FLOW_OPS | {"_Retval"}


class _Pivots(NamedTuple):
    """Of one predicate: the nodes that run in either branch, and what they go by."""

    device: str
    switch: str
    names: tuple[str, str]


def lighten_branches(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph without the Switches of some branches; None where all stay.

    They are those with a part of their names. The given graph is not written.

    Before   x --> Switch(predicate) --> Identity --> node
    After    x --> node, which waits for the branch's pivot

    The pivot runs only if the branch is taken, and so does what waits for it. A branch
    that updates hundreds of variables is spared a Switch, and often an Identity, for
    each.

    Not done: branches without a pivot on the same device; loops; what leads straight
    into a Merge or a loop; what is fetched, or colocated with; what a node waits for
    without using it; what is used on another device, and would be sent there in vain.
    """
    nodes = [node for node in graph_def.node if part_of_name in node.name]
    if not nodes:
        return None
    graph = Graph(graph_def)
    pivots = _pivots(graph, nodes)
    kept = item.untouchable | graph.awaited
    # By output: the input that it passes on, and what to wait for instead.
    outside: dict[str, list[str]] = {}
    # Switches, then what passes their outputs on.
    for op in ("Switch", "Identity"):
        for node in nodes:
            if node.op == op and node.name not in kept:
                outside.update(_outside(node, pivots, graph, outside))
    if not outside:
        return None

    def inputs_of(node: NodeDef) -> Iterator[str]:
        return chain.from_iterable(outside.get(t, [t]) for t in texts_of(node))

    return graph.redirected(inputs_of, set(map(name_in, outside)))


def _pivots(graph: Graph, nodes: Sequence[NodeDef]) -> dict[str, _Pivots]:
    """Return the pivots by predicate."""
    loops = {node.name for node in graph.nodes if node.op == "LoopCond"}

    def pivot(switch: NodeDef, output: str) -> str:
        """Return the control input that stands for a branch; "" where there is none."""
        return next(
            (
                f"^{reader.name}"
                for reader in graph.reading(output)
                if reader.op == "Identity" and reader.device == switch.device
            ),
            "",
        )

    found: dict[str, _Pivots] = {}
    for node in nodes:
        if node.op == "Switch" and node.input[0] == node.input[1] not in loops:
            names = pivot(node, node.name), pivot(node, f"{node.name}:1")
            pivots = _Pivots(node.device, node.name, names)
            found.setdefault(node.input[1], pivots)
    return found


def _outside(
    node: NodeDef,
    pivots: Mapping[str, _Pivots],
    graph: Graph,
    known: Mapping[str, list[str]],
) -> dict[str, list[str]]:
    """Return the inputs in the place of a Switch's outputs, or an Identity's."""
    outputs = (node.name, f"{node.name}:1")
    readers = list(chain.from_iterable(map(graph.reading, outputs)))
    is_bound = any(r.op in _BOUND or r.device != node.device for r in readers)
    if not readers or is_bound or graph.reading(f"^{node.name}"):
        return {}
    if node.op == "Identity":
        before = known.get(node.input[0])
        return {node.name: [*before, *node.input[1:]]} if before else {}
    pivot = pivots.get(node.input[1])
    if pivot is None or node.name == pivot.switch or node.device != pivot.device:
        return {}
    sides = dict(zip(outputs, pivot.names, strict=True))
    if any(graph.reading(output) and not side for output, side in sides.items()):
        return {}
    return {
        output: [node.input[0], side, *node.input[2:]]
        for output, side in sides.items()
        if side
    }


def merge_equal_reads(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph in which equal reads are one; None where no two are equal.

    They are those with a part of their names. The given graph is not written.

    Before   handle, ^pivot --> read --> a;  handle, ^pivot --> another read --> b
    After    handle, ^pivot --> read --> a and b

    What waits for the same nodes may run at the same moment, so that one value serves
    all; a write that waits for one of the reads waits for the one that stays.
    TensorFlow merges what is computed alike from equal values, but takes no two reads
    for equal.

    An optimizer that computes its rate anew for every variable then does so once.

    Not done: what the caller relies on, and may feed with something else than the
    variable; reads that the pass is to treat differently, by an attribute of its own.
    """
    graph = Graph(graph_def)
    kept = graph.awaited
    first: dict[Hashable, str] = {}
    instead: dict[str, str] = {}
    for node in graph_def.node:
        if node.op != "ReadVariableOp" or part_of_name not in node.name:
            continue
        if node.name in item.untouchable:
            continue
        handle, *controls = node.input
        marks = frozenset(
            (name, mark.SerializeToString())
            for name, mark in node.attr.items()
            if name.startswith(STAMP)
        )
        dtype = node.attr["dtype"].type
        what_is_read = handle, frozenset(controls), dtype, node.device, marks
        same = first.setdefault(what_is_read, node.name)
        if same != node.name and node.name not in kept:
            instead[node.name] = same
    if not instead:
        return None
    instead |= {f"^{name}": f"^{same}" for name, same in instead.items()}
    return graph.redirected(
        lambda node: [instead.get(t.removesuffix(":0"), t) for t in node.input],
        graph.index.keys() & instead.keys(),
    )
