"""Transposes in a graph: which undo each other, and what the others take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import tensor_util

from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.graph.device_types import device_type_at
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.type_slots import DTYPE_NAMES
from grappler_pass.graph.view import Port, split_input
from grappler_pass.graph.walks import reached
from grappler_pass.planning.draft import Draft
from grappler_pass.rewriting.named_graphs import copied, name_in, texts_of

Nodes = Mapping[str, NodeDef]


def without_pairs(graph_def: GraphDef, given: Iterable[str]) -> GraphDef:
    """Return a copy in which nothing reads a tensor that is transposed and back.

    Before   x --> transpose --> transpose --> conv
    After    x --> conv

    Args:
      graph_def: the graph; not written.
      given: the names of nodes that stay, read or not.
    """
    nodes = {node.name: node for node in graph_def.node}
    same = dict(_pairs(nodes))

    def read_by(node: NodeDef) -> Iterator[str]:
        for text in texts_of(node):
            while text in same:
                text = same[text]
            yield text

    def sources(name: str) -> list[str]:
        return [name_in(text) for text in read_by(nodes[name])]

    staying = set(reached(given, sources))
    return copied(graph_def, read_by, nodes.keys() - staying)


def _pairs(nodes: Nodes) -> Iterator[tuple[str, str]]:
    """Yield each tensor that is transposed twice, and what it is equal to."""
    for node in nodes.values():
        order = _order(node, nodes)
        before = nodes[name_in(node.input[0])] if order else node
        first = _order(before, nodes) if order else []
        if len(first) == len(order) > 0 and [first[i] for i in order] == sorted(first):
            yield node.name, texts_of(before)[0]


def _order(node: NodeDef, nodes: Nodes) -> list[int]:
    """Return the axes that a transpose reads one after the other, if it says so."""
    if node.op != "Transpose" or len(node.input) != 2:
        return []
    axes = nodes[name_in(node.input[1])]
    if axes.op != "Const":
        return []
    values = tensor_util.MakeNdarray(axes.attr["value"].tensor)
    return [int(axis) for axis in np.atleast_1d(values)]


def seconds_added(draft: Draft, before: GraphDef, after: GraphDef) -> float:
    """Return what the transposes of one graph take more than those of another.

    Args:
      draft: of which `before` is the rewritten graph.
      before: a graph; it is a part of `after`.
      after: a graph with other transposes.
    """
    return _seconds(draft, after) - _seconds(draft, before)


def _seconds(draft: Draft, graph_def: GraphDef) -> float:
    """Return the seconds per step of a graph's transposes that somebody reads."""
    nodes = {node.name: node for node in graph_def.node}
    read = {name_in(text) for node in graph_def.node for text in node.input}
    found = (n for n in graph_def.node if n.op == "Transpose" and n.name in read)
    return sum(_transpose_seconds(draft, node, nodes.__getitem__) for node in found)


def _transpose_seconds(
    draft: Draft, node: NodeDef, node_of: Callable[[str], NodeDef]
) -> float:
    dtype = DTYPE_NAMES.get(node.attr["T"].type)
    if dtype is None:
        return 0.0
    view, models = draft.view, draft.settings.models
    name, output = split_input(node.input[0])
    while name not in view.index:
        # A new node: its operand is as large.
        name, output = split_input(node_of(name).input[0])
    port = Port(view.index[name], output)
    spec = TensorSpec(known_shape(draft.shapes, view, port), dtype)
    model = models.get(device_type_at(node, draft.settings.home)) or models["CPU"]
    call = OpCall("Transpose", {}, (spec,), (spec,))
    return model.price(call, dtype).seconds * view.weight(port.node)
