"""Make branches of a lowered graph cost little: Switches, equal reads, known sides."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import STAMP
from grappler_pass.graph.editing import (
    Graph,
    data_of,
    name_in,
    readers_by_name,
    texts_of,
)
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS
from grappler_pass.graph.view import Item

_BOUND = CONTROL_FLOW_OPS | {"_Retval"}
_LOOPS = CONTROL_FLOW_OPS - {"Merge", "Switch"}


class _Pivots(NamedTuple):
    """Of one predicate: the nodes that run in either branch, and what they go by."""

    device: str
    switch: str
    names: tuple[str, str]


class _Outside(NamedTuple):
    """The input that an output of a Switch passes on, and what to wait for instead."""

    source: str
    waits_for: tuple[str, ...]


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
    graph = Graph(graph_def)
    nodes = [node for node in graph_def.node if part_of_name in node.name]
    pivots = _pivots(graph, nodes)
    kept = item.untouchable | graph.awaited
    outside: dict[str, _Outside] = {}
    # Switches, then what passes their outputs on.
    for op in ("Switch", "Identity"):
        for node in nodes:
            if node.op == op and node.name not in kept:
                outside.update(_outside(node, pivots, graph, outside))
    if not outside:
        return None
    graph.redirect(lambda node: _inputs_of(node, outside), set(map(name_in, outside)))
    return graph.to_graph_def()


def _pivots(graph: Graph, nodes: Sequence[NodeDef]) -> dict[str, _Pivots]:
    """Return the pivots by predicate."""
    loops = {node.name for node in graph.nodes.values() if node.op == "LoopCond"}
    found: dict[str, _Pivots] = {}
    for node in nodes:
        if node.op != "Switch" or node.input[0] != node.input[1]:
            continue
        if (predicate := node.input[1]) in loops:
            continue
        read_by = graph.reading(node.name), graph.reading(_taken(node))
        names = _pivot(node, read_by[0]), _pivot(node, read_by[1])
        found.setdefault(predicate, _Pivots(node.device, node.name, names))
    return found


def _pivot(switch: NodeDef, readers: Sequence[NodeDef]) -> str:
    """Return the control input that stands for a branch; "" where there is none."""
    for reader in readers:
        if reader.op == "Identity" and reader.device == switch.device:
            return f"^{reader.name}"
    return ""


def _outside(
    node: NodeDef,
    pivots: Mapping[str, _Pivots],
    graph: Graph,
    known: Mapping[str, _Outside],
) -> dict[str, _Outside]:
    """Return what the outputs of a Switch, or of an Identity after one, stand for."""
    if not _is_free(node, graph):
        return {}
    if node.op == "Identity" and node.input[0] in known:
        before = known[node.input[0]]
        waits_for = dict.fromkeys((*before.waits_for, *node.input[1:]))
        return {node.name: _Outside(before.source, tuple(waits_for))}
    if node.op != "Switch" or node.input[1] not in pivots:
        return {}
    pivot = pivots[node.input[1]]
    if node.name == pivot.switch or node.device != pivot.device:
        return {}
    outputs = (node.name, _taken(node))
    sides = dict(zip(outputs, pivot.names, strict=True))
    if any(graph.reading(output) and not side for output, side in sides.items()):
        return {}
    controls = tuple(node.input[2:])
    return {
        output: _Outside(node.input[0], (side, *controls))
        for output, side in sides.items()
        if side
    }


def _is_free(node: NodeDef, graph: Graph) -> bool:
    """Return whether a node can go: only ordinary nodes beside it read its outputs."""
    read_by = (*graph.reading(node.name), *graph.reading(_taken(node)))
    if not read_by or graph.readers(f"^{node.name}"):
        return False
    return all(r.op not in _BOUND and r.device == node.device for r in read_by)


def _taken(switch: NodeDef) -> str:
    return f"{switch.name}:1"


def _inputs_of(node: NodeDef, outside: Mapping[str, _Outside]) -> Iterator[str]:
    texts = texts_of(node)
    yield from (outside[t].source if t in outside else t for t in texts)
    for text in texts:
        if text in outside:
            yield from outside[text].waits_for


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
        same = first.setdefault(_what_is_read(node), node.name)
        if same != node.name and node.name not in kept:
            instead[node.name] = same
    if not instead:
        return None
    instead |= {f"^{name}": f"^{same}" for name, same in instead.items()}
    graph.redirect(
        lambda node: [instead.get(t.removesuffix(":0"), t) for t in node.input],
        graph.nodes.keys() & instead.keys(),
    )
    return graph.to_graph_def()


def _what_is_read(node: NodeDef) -> Hashable:
    handle, *controls = node.input
    marks = {name: mark for name, mark in node.attr.items() if name.startswith(STAMP)}
    texts = frozenset((name, m.SerializeToString()) for name, m in marks.items())
    return handle, frozenset(controls), node.attr["dtype"].type, node.device, texts


def without_known_branches(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph in which Switches of known predicates pass on what they read.

    They are those with a part of their names; None where all are to stay. The given
    graph is not written.

    Before   x --> Switch(True) --> node --> Merge --> y
    After    x --> Identity --> node --> Identity --> y

    What the other branch would have done goes. A graph without any branch is run by a
    simpler executor, which a step of small operations gains from.

    Not done: a branch with a loop in it that never runs; a Merge that tells what it has
    chosen; what never runs, but is fetched.
    """
    graph = Graph(graph_def)
    nodes = graph.nodes
    switches = {
        node.name: predicate
        for node in nodes.values()
        if node.op == "Switch" and part_of_name in node.name
        for predicate in _known(nodes.get(name_in(node.input[1])))
    }
    if not switches:
        return None
    never = {name if taken else f"{name}:1" for name, taken in switches.items()}
    gone = _never_run(nodes, never)

    def inputs_of(node: NodeDef) -> Iterator[str]:
        for text in texts_of(node):
            if text not in never and name_in(text) not in gone:
                yield text.removesuffix(":1") if name_in(text) in switches else text

    merges = {
        node.name: data_of(inputs_of(node))
        for node in nodes.values()
        if node.op == "Merge" and node.name not in gone
    }
    chosen = {name for name in merges if len(merges[name]) < nodes[name].attr["N"].i}
    told = {f"{name}:1" for name in chosen}
    kept = item.untouchable | graph.awaited
    if (
        not kept.isdisjoint(gone | switches.keys())
        or any(nodes[name].op in _LOOPS for name in gone)
        or any(len(merges[name]) != 1 for name in chosen)
        or any(not told.isdisjoint(texts_of(node)) for node in nodes.values())
    ):
        return None
    graph.redirect(inputs_of, gone)
    for name in nodes.keys() & (switches.keys() | chosen):
        _pass_on(graph.edit(name))
    return graph.to_graph_def()


def _known(predicate: NodeDef | None) -> Iterator[bool]:
    """Yield what a predicate is, if it is a constant."""
    if predicate is not None and predicate.op == "Const":
        yield bool(tf.make_ndarray(predicate.attr["value"].tensor))


def _never_run(nodes: Mapping[str, NodeDef], never: Collection[str]) -> set[str]:
    """Return the nodes that read, or wait for, outputs that are never made."""
    readers = readers_by_name(nodes.values())
    gone: set[str] = set()

    def is_missing(text: str) -> bool:
        return text in never or name_in(text) in gone

    waiting = list(map(name_in, never))
    while waiting:
        for node in readers.get(waiting.pop(), ()):
            texts = texts_of(node)
            if node.op == "Merge":
                never_runs = all(map(is_missing, data_of(texts)))
            else:
                never_runs = any(map(is_missing, texts))
            if never_runs and node.name not in gone:
                gone.add(node.name)
                waiting.append(node.name)
    return gone


def _pass_on(node: NodeDef) -> None:
    """Make an Identity of a node whose first input is to be its output; it is written.

    The predicate of a Switch, the second one, is waited for.
    """
    first, *others = node.input
    controls = dict.fromkeys(f"^{name_in(text)}" for text in others if text != first)
    node.op = "Identity"
    node.input[:] = [first, *controls]
    node.attr.pop("N", None)
