"""A graph by the names in it: who reads what, and a copy with other inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

# By what is read, as `texts_of` or `name_in` return it.
Readers = Mapping[str, Sequence[NodeDef]]


def texts_of(node: NodeDef) -> list[str]:
    """Return what a node reads and waits for, each output written in one way."""
    return [text.removesuffix(":0") for text in node.input]


def name_in(text: str) -> str:
    """Return the node whose output, or whose end, an input stands for."""
    return text.removeprefix("^").partition(":")[0]


def readers_in(
    nodes: Iterable[NodeDef],
    read_by: Callable[[NodeDef], Iterable[str]] = texts_of,
) -> Readers:
    """Return what reads what, and nothing for what is not read."""
    readers: dict[str, list[NodeDef]] = defaultdict(list)
    for node in nodes:
        for text in read_by(node):
            readers[text].append(node)
    return readers


def awaited(graph_def: GraphDef) -> frozenset[str]:
    """Name the nodes whose device others, colocated with them, are yet to be given."""
    waiting = (n for n in graph_def.node if "_class" in n.attr and not n.device)
    return frozenset(
        _colocated_with(value)
        for node in waiting
        for value in node.attr["_class"].list.s
    )


def copied(
    graph_def: GraphDef,
    inputs_of: Callable[[NodeDef], Iterable[str]],
    gone: Collection[str] = (),
) -> GraphDef:
    """Return a copy of a graph without some nodes.

    Args:
      graph_def: the graph; not written.
      inputs_of: returns what a node is to read and to wait for, in any order and as
        often as it likes.
      gone: the names of nodes that the copy lacks.
    """
    copy = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if node.name not in gone:
            staying = copy.node.add()
            staying.CopyFrom(node)
            texts = list(inputs_of(node))
            data = [text for text in texts if not text.startswith("^")]
            controls = dict.fromkeys(text for text in texts if text.startswith("^"))
            staying.input[:] = [*data, *controls]
            if "_class" in node.attr:
                _forget(staying, gone)
    return copy


def _forget(node: NodeDef, gone: Collection[str]) -> None:
    """Let a node no longer be colocated with nodes that are gone; it is written."""
    values = node.attr["_class"].list.s
    staying = [value for value in values if _colocated_with(value) not in gone]
    values[:] = staying
    if not staying:
        del node.attr["_class"]


def _colocated_with(value: bytes) -> str:
    return value.decode().removeprefix("loc:@")
