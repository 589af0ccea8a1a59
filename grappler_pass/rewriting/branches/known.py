"""Take a branch whose predicate is a constant, without asking.

Before   x --> Switch(True) --> node --> Merge --> y
After    x --> Identity --> node --> Identity --> y

What the other branch would have done goes. A graph without any branch is run by a
simpler executor, which a step of small operations gains from.

Not done: a branch with a loop in it that never runs; a Merge that tells what it has
chosen; what never runs, but is fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import tensor_util

from grappler_pass.graph.op_table import CONTROL_FLOW_OPS
from grappler_pass.graph.view import Item
from grappler_pass.rewriting.named_graphs import (
    awaited,
    copied,
    name_in,
    readers_in,
    texts_of,
)

_LOOPS = CONTROL_FLOW_OPS - {"Merge", "Switch"}


def without_known_branches(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph in which Switches of known predicates pass on what they read.

    They are those with a part of their names; None where all are to stay. The given
    graph is not written.
    """
    nodes = {node.name: node for node in graph_def.node}
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
        node.name: [text for text in inputs_of(node) if not text.startswith("^")]
        for node in nodes.values()
        if node.op == "Merge" and node.name not in gone
    }
    chosen = {name for name in merges if len(merges[name]) < nodes[name].attr["N"].i}
    told = {f"{name}:1" for name in chosen}
    kept = item.untouchable | awaited(graph_def)
    if (
        not kept.isdisjoint(gone | switches.keys())
        or any(nodes[name].op in _LOOPS for name in gone)
        or any(len(merges[name]) != 1 for name in chosen)
        or any(not told.isdisjoint(texts_of(node)) for node in nodes.values())
    ):
        return None
    result = copied(graph_def, inputs_of, gone)
    for node in result.node:
        if node.name in switches or node.name in chosen:
            _pass_on(node)
    return result


def _known(predicate: NodeDef | None) -> Iterator[bool]:
    """Yield what a predicate is, if it is a constant."""
    if predicate is not None and predicate.op == "Const":
        yield bool(tensor_util.MakeNdarray(predicate.attr["value"].tensor))


def _never_run(nodes: Mapping[str, NodeDef], never: Collection[str]) -> set[str]:
    """Return the nodes that read, or wait for, outputs that are never made."""
    readers = readers_in(nodes.values(), lambda node: set(map(name_in, texts_of(node))))
    gone: set[str] = set()

    def is_missing(text: str) -> bool:
        return text in never or name_in(text) in gone

    waiting = list(map(name_in, never))
    while waiting:
        for node in readers[waiting.pop()]:
            texts = texts_of(node)
            if node.op == "Merge":
                data = [text for text in texts if not text.startswith("^")]
                never_runs = all(map(is_missing, data))
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
