"""A graph anew, without some nodes and with other inputs for those that stay."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.rewriting.branches import colocation


def copied(
    graph_def: GraphDef,
    inputs_of: Callable[[NodeDef], Iterable[str]],
    gone: Collection[str] = (),
) -> GraphDef:
    """Return a copy of a graph.

    Args:
      graph_def: the graph; not written.
      inputs_of: returns what a node is to read and to wait for, in any order and as
        often as it likes.
      gone: the names of nodes that the copy lacks.
    """
    copy = GraphDef()
    copy.versions.CopyFrom(graph_def.versions)
    copy.library.CopyFrom(graph_def.library)
    for node in graph_def.node:
        if node.name not in gone:
            staying = copy.node.add()
            staying.CopyFrom(node)
            _set_inputs(staying, inputs_of(node))
            colocation.forget(staying, gone)
    return copy


def _set_inputs(node: NodeDef, inputs: Iterable[str]) -> None:
    texts = list(inputs)
    data = [text for text in texts if not text.startswith("^")]
    controls = dict.fromkeys(text for text in texts if text.startswith("^"))
    del node.input[:]
    node.input.extend((*data, *controls))
