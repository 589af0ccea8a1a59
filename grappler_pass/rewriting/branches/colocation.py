"""Nodes that are to share a device with others, by the attribute that says so."""

from __future__ import annotations

from collections.abc import Collection

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

_CLASS = "_class"


def awaited(graph_def: GraphDef) -> frozenset[str]:
    """Name the nodes whose device others are still to be given."""
    waiting = (n for n in graph_def.node if _CLASS in n.attr and not n.device)
    return frozenset(_name(v) for node in waiting for v in node.attr[_CLASS].list.s)


def forget(node: NodeDef, gone: Collection[str]) -> None:
    """Let a node no longer refer to nodes that are gone; it is written."""
    if _CLASS not in node.attr:
        return
    values = node.attr[_CLASS].list.s
    staying = [value for value in values if _name(value) not in gone]
    del values[:]
    values.extend(staying)
    if not staying:
        del node.attr[_CLASS]


def _name(value: bytes) -> str:
    return value.decode().removeprefix("loc:@")
