"""Activate rows of a product before they are given the axes of a larger tensor.

Before   MatMul(x, w) --> Reshape --> BiasAdd --> activation
After    MatMul(x, w) --> BiasAdd --> activation --> Reshape

That is a Dense layer on inputs of three and more axes, as Keras writes it: it
multiplies rows. TensorFlow's remapper makes one kernel of a product, its bias and its
activation, GELU as well, but only where no Reshape lies between them; it runs again
after this.
Each value is computed from the same ones as before.

Not done: where anything else reads what lies between, as the gradient of GELU does;
where channels do not stay last; where no activation follows, which gains nothing; on
GPUs, where it was not measured.

References: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.eligibility.known_wrong import ends_in_channels
from grappler_pass.fusions.new_nodes import NewNodes, part_of, with_inputs
from grappler_pass.fusions.passes import PricedGraph
from grappler_pass.graph.shapes import Shape
from grappler_pass.graph.view import Node, port_text

# What activations that the remapper knows consist of.
_ACTIVATIONS = (
    {"Relu"},
    {"Relu6"},
    {"Elu"},
    {"LeakyRelu"},
    # GELU, by the error function and by tanh.
    {"Neg", "Mul", "Erfc"},
    {"Mul", "AddV2", "Erf"},
    {"Mul", "AddV2", "Tanh", "Square"},
    {"Mul", "AddV2", "Tanh", "Pow"},
)
_OPS = frozenset[str]().union(*_ACTIVATIONS)
_MOST_NODES = 12


class Activation(NamedTuple):
    """What follows a product of rows that are given more axes.

    Attributes:
      root: the matrix product, whose only reader is `reshape`.
      reshape: gives its rows more axes, and is read by the bias alone.
      nodes: the bias and what activates it; of these only the last is read elsewhere.
      shape: static shape of the product.
    """

    root: Node
    reshape: Node
    nodes: tuple[Node, ...]
    shape: Shape


def found(graph: PricedGraph) -> Iterator[Activation]:
    """Yield what can be activated in rows."""
    for product in graph.view.nodes:
        if product.op != "MatMul" or product.proto.attr["T"].type != DT_FLOAT:
            continue
        if graph.model(product).profile.kind != "cpu":
            continue
        reshape = graph.only_reader(product, "Reshape")
        shape = graph.result_shape(product)
        if not reshape or not shape or not _keeps_channels(graph, shape, reshape):
            continue
        nodes = _activation_behind(graph, reshape)
        if not nodes or any(node.place != product.place for node in nodes):
            continue
        if graph.may_change(product, reshape, *nodes):
            yield Activation(product, reshape, nodes, shape)


def _keeps_channels(graph: PricedGraph, shape: Shape, reshape: Node) -> bool:
    given = graph.result_shape(reshape)
    return bool(given and shape[-1] and shape[-1] == given[-1])


def _activation_behind(graph: PricedGraph, reshape: Node) -> tuple[Node, ...]:
    """Return a bias and its activation; nothing if there is none that is known."""
    bias = graph.only_reader(reshape, "BiasAdd")
    if bias is None or bias.inputs[0].node != reshape.index:
        return ()
    if not ends_in_channels(bias.proto):
        return ()
    nodes: tuple[Node, ...] = (bias,)
    while len(nodes) < _MOST_NODES:
        following = _following(graph, nodes)
        if following is None:
            return ()
        nodes = (*nodes, following)
        if _read_outside(graph, nodes) == [following]:
            ops = {node.op for node in nodes[1:]}
            return nodes if ops in _ACTIVATIONS else ()
    return ()


def _following(graph: PricedGraph, nodes: Sequence[Node]) -> Node | None:
    """Return a further node that computes with these and with scalars alone."""
    known = {node.index for node in nodes}
    for node in nodes:
        for reader in graph.readers(node):
            if reader.index not in known and _computes_with(graph, reader, known):
                return reader
    return None


def _computes_with(graph: PricedGraph, node: Node, known: Collection[int]) -> bool:
    if node.op not in _OPS or node.controls or graph.view.control_readers(node.index):
        return False
    if node.proto.attr["T"].type != DT_FLOAT:
        return False
    return all(graph.shape(p) == () for p in node.inputs if p.node not in known)


def _read_outside(graph: PricedGraph, nodes: Sequence[Node]) -> list[Node]:
    """Return those of the nodes that others read."""
    known = {node.index for node in nodes}
    return [
        node
        for node in nodes
        if any(reader.index not in known for reader in graph.readers(node))
    ]


def seconds(found: Activation, graph: PricedGraph) -> float:
    """Return what is saved per step: all passes but for the longest."""
    passes = [
        graph.pass_seconds(found.root, node.op, found.shape) for node in found.nodes
    ]
    return graph.gain(found.root, sum(passes), max(passes))


def made(found: Activation, graph: PricedGraph) -> NewNodes:
    """Return a product activated in rows; the last node hands on what has more axes."""
    reshape, last = found.reshape, found.nodes[-1]
    new = NewNodes(graph, found.root, found.root.inputs[0])
    for node in found.nodes[:-1]:
        new.replace(node, _in_rows(node, found))
        new.shapes[node.name] = found.shape
    rows = new.add(_in_rows(last, found), "activation", found.shape)
    sizes = port_text(graph.view, reshape.inputs[1])
    new.replace(reshape, part_of(reshape, "Reshape", rows, sizes))
    new.hand_on(last, reshape.name)
    return new


def _in_rows(node: Node, found: Activation) -> NodeDef:
    """Return the same operation on the product itself."""
    name = found.reshape.name
    row = with_inputs(node, dict.fromkeys((name, f"{name}:0"), found.root.name))
    row.attr.pop("_output_shapes", None)
    return row
