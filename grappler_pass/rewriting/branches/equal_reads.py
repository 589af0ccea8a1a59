"""Read a variable once where nodes of one branch read it alike.

Before   handle, ^pivot --> read --> a;  handle, ^pivot --> another read --> b
After    handle, ^pivot --> read --> a and b

What waits for the same nodes may run at the same moment, so that one value serves all;
a write that waits for one of the reads waits for the one that stays. TensorFlow merges
what is computed alike from equal values, but takes no two reads for equal.

An optimizer that computes its rate anew for every variable then does so once.

Not done: what the caller relies on, and may feed with something else than the variable;
reads that the pass is to treat differently, by an attribute of its own.
"""

from __future__ import annotations

from collections.abc import Hashable

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import STAMP
from grappler_pass.graph.view import Item
from grappler_pass.rewriting.named_graphs import awaited, copied


def merge_equal_reads(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph in which equal reads are one; None where no two are equal.

    They are those with a part of their names. The given graph is not written.
    """
    kept = awaited(graph_def)
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
    return copied(
        graph_def,
        lambda node: [instead.get(t.removesuffix(":0"), t) for t in node.input],
        instead.keys(),
    )


def _what_is_read(node: NodeDef) -> Hashable:
    handle, *controls = node.input
    marks = {name: mark for name, mark in node.attr.items() if name.startswith(STAMP)}
    texts = frozenset((name, m.SerializeToString()) for name, m in marks.items())
    return handle, frozenset(controls), node.attr["dtype"].type, node.device, texts
