"""Let constants of a branch be there before it is known whether the branch is taken.

Before   ^pivot --> constant --> node,  ^pivot --> other --> node
After    constant --> node,  ^pivot --> other --> node

Constants have no effect, so it does not matter when they are made, as long as what
reads them waits for the same as before by another way: then it stays as dead as it was
where the branch is not taken, and what waits for the pivot is that much less.

Not done: constants in loops, which belong to a round of it by what they wait for.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.op_table import ENTER_OPS, EXIT_OPS, MERGE_OPS
from grappler_pass.graph.view import Item
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting.named_graphs import Readers, copied, name_in, readers_in


def free_constants(
    graph_def: GraphDef, part_of_name: str, item: Item
) -> GraphDef | None:
    """Return a graph in which constants of branches wait for nothing, if any can.

    They are those with a part of their names. The given graph is not written.
    """
    waiting = {
        node.name: tuple(map(name_in, node.input))
        for node in graph_def.node
        if node.op == "Const" and node.input and part_of_name in node.name
    }
    readers = readers_in(graph_def.node, lambda node: map(name_in, node.input))
    entered = [node.name for node in graph_def.node if node.op in ENTER_OPS]
    in_loops = _reached(entered, readers, EXIT_OPS)
    awaited = {name for names in waiting.values() for name in names}
    after = {
        name: _reached([name], readers, MERGE_OPS, without=waiting) for name in awaited
    }
    free = {
        name
        for name, controls in waiting.items()
        if name not in item.untouchable
        and name not in in_loops
        and all(
            reader.name in after[control]
            for reader in readers[name]
            for control in controls
        )
    }
    if not free:
        return None
    return copied(graph_def, lambda node: () if node.name in free else node.input)


def _reached(
    start: Iterable[str],
    readers: Readers,
    ends: Container[str],
    without: Container[str] = (),
) -> set[str]:
    """Name what waits for nodes by ways without some others, and before the ends."""

    def following(name: str) -> list[str]:
        free = (r for r in readers[name] if r.op not in ends)
        return [reader.name for reader in free if reader.name not in without]

    return set(reached(start, following))
