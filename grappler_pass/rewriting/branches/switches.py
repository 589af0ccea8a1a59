"""Let the nodes of a branch take what comes from outside as it is.

Before   x --> Switch(predicate) --> Identity --> node
After    x --> node, which waits for the branch's pivot

The pivot runs only if the branch is taken, and so does what waits for it. A branch that
updates hundreds of variables is spared a Switch, and often an Identity, for each.

Not done: branches without a pivot on the same device; loops; what leads straight into a
Merge or a loop; what is fetched, or colocated with; what a node waits for without using
it; what is used on another device, and would be sent there in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.op_table import CONTROL_FLOW_OPS
from grappler_pass.graph.view import Item
from grappler_pass.rewriting.named_graphs import (
    Readers,
    awaited,
    copied,
    name_in,
    readers_in,
    texts_of,
)

_BOUND = CONTROL_FLOW_OPS | {"_Retval"}


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
    """
    nodes = [node for node in graph_def.node if part_of_name in node.name]
    readers = readers_in(graph_def.node)
    pivots = _pivots(graph_def, nodes, readers)
    kept = item.untouchable | awaited(graph_def)
    outside: dict[str, _Outside] = {}
    # Switches, then what passes their outputs on.
    for op in ("Switch", "Identity"):
        for node in nodes:
            if node.op == op and node.name not in kept:
                outside.update(_outside(node, pivots, readers, outside))
    if not outside:
        return None
    gone = set(map(name_in, outside))
    return copied(graph_def, lambda node: _inputs_of(node, outside), gone)


def _pivots(
    graph_def: GraphDef, nodes: Sequence[NodeDef], readers: Readers
) -> dict[str, _Pivots]:
    """Return the pivots by predicate."""
    loops = {node.name for node in graph_def.node if node.op == "LoopCond"}
    found: dict[str, _Pivots] = {}
    for node in nodes:
        if node.op != "Switch" or node.input[0] != node.input[1]:
            continue
        if (predicate := node.input[1]) in loops:
            continue
        names = _pivot(node, readers[node.name]), _pivot(node, readers[_taken(node)])
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
    readers: Readers,
    known: Mapping[str, _Outside],
) -> dict[str, _Outside]:
    """Return what the outputs of a Switch, or of an Identity after one, stand for."""
    if not _is_free(node, readers):
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
    if any(readers[output] and not side for output, side in sides.items()):
        return {}
    controls = tuple(node.input[2:])
    return {
        output: _Outside(node.input[0], (side, *controls))
        for output, side in sides.items()
        if side
    }


def _is_free(node: NodeDef, readers: Readers) -> bool:
    """Return whether a node can go: only ordinary nodes beside it read its outputs."""
    read_by = (*readers[node.name], *readers[_taken(node)])
    if not read_by or readers[f"^{node.name}"]:
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
