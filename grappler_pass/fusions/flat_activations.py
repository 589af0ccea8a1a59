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

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.eligibility.fused_ops import part_node
from grappler_pass.fusions.new_nodes import NewNodes, handing_on, with_new_nodes
from grappler_pass.fusions.passes import (
    model_of,
    only_reader,
    pass_seconds,
    readers_of,
    untouchable_names,
)
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.view import GraphView, Node, Port, port_text
from grappler_pass.pricing.seconds import Models

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


@dataclasses.dataclass(frozen=True)
class Activation:
    """What follows a product of rows that are given more axes.

    Attributes:
      product: the matrix product, whose only reader is `reshape`.
      reshape: gives its rows more axes, and is read by the bias alone.
      nodes: the bias and what activates it; of these only the last is read elsewhere.
      shape: static shape of the product.
      seconds: saved per execution.
    """

    product: Node
    reshape: Node
    nodes: tuple[Node, ...]
    shape: Shape
    seconds: float = 0.0

    @property
    def root(self) -> Node:
        """What it begins with."""
        return self.product


def found(view: GraphView, shapes: Shapes, models: Models) -> list[Activation]:
    """Return what can be done and surely pays.

    Args:
      view: of the graph.
      shapes: static shapes; of channels that are not known nothing is done.
      models: a cost model per device type, "CPU" at least.
    """
    return [_priced(each, view, models) for each in _found(view, shapes, models)]


def _found(view: GraphView, shapes: Shapes, models: Models) -> Iterator[Activation]:
    untouchable = untouchable_names(view)
    for product in view.nodes:
        if product.op != "MatMul" or product.proto.attr["T"].type != DT_FLOAT:
            continue
        if model_of(models, product).profile.kind != "cpu":
            continue
        reshape = only_reader(view, product)
        if reshape is None or reshape.op != "Reshape":
            continue
        shape = known_shape(shapes, view, Port(product.index, 0))
        nodes = _activation_behind(view, shapes, reshape)
        if not nodes or not _keeps_channels(view, shapes, shape, reshape):
            continue
        touched = (product, reshape, *nodes)
        if any(node.device != product.device for node in nodes):
            continue
        if untouchable.isdisjoint(node.name for node in touched):
            assert shape is not None
            yield Activation(product, reshape, nodes, shape)


def _keeps_channels(
    view: GraphView, shapes: Shapes, shape: Shape | None, reshape: Node
) -> bool:
    given = known_shape(shapes, view, Port(reshape.index, 0))
    return bool(shape and given and shape[-1] and shape[-1] == given[-1])


def _activation_behind(
    view: GraphView, shapes: Shapes, reshape: Node
) -> tuple[Node, ...]:
    """Return a bias and its activation; nothing if there is none that is known."""
    bias = only_reader(view, reshape)
    if bias is None or bias.op != "BiasAdd" or bias.inputs[0].node != reshape.index:
        return ()
    attrs = bias.proto.attr
    if "data_format" in attrs and not attrs["data_format"].s.endswith(b"C"):
        return ()
    nodes: tuple[Node, ...] = (bias,)
    while len(nodes) < _MOST_NODES:
        following = _following(view, shapes, nodes)
        if following is None:
            return ()
        nodes = (*nodes, following)
        if _readers_outside(view, nodes) == [following]:
            ops = {node.op for node in nodes[1:]}
            return nodes if ops in _ACTIVATIONS else ()
    return ()


def _following(view: GraphView, shapes: Shapes, nodes: Sequence[Node]) -> Node | None:
    """Return a further node that computes with these and with scalars alone."""
    known = {node.index for node in nodes}
    for node in nodes:
        for index in readers_of(view, node):
            if index not in known and _computes_with(view, shapes, index, known):
                return view.nodes[index]
    return None


def _computes_with(
    view: GraphView, shapes: Shapes, index: int, known: Collection[int]
) -> bool:
    node = view.nodes[index]
    if node.op not in _OPS or node.controls or view.control_readers(index):
        return False
    if node.proto.attr["T"].type != DT_FLOAT:
        return False
    others = (port for port in node.inputs if port.node not in known)
    return all(known_shape(shapes, view, port) == () for port in others)


def _readers_outside(view: GraphView, nodes: Sequence[Node]) -> list[Node]:
    """Return those of the nodes that others read."""
    known = {node.index for node in nodes}
    return [node for node in nodes if not known.issuperset(readers_of(view, node))]


def _priced(found: Activation, view: GraphView, models: Models) -> Activation:
    """Return what is found with what it saves: all passes but for the longest."""
    model = model_of(models, found.product)
    passes = [pass_seconds(model, node.op, found.shape) for node in found.nodes]
    weight = view.weight(found.product.index)
    return dataclasses.replace(found, seconds=weight * (sum(passes) - max(passes)))


def rewritten(
    graph_def: GraphDef, view: GraphView, shapes: Shapes, found: Sequence[Activation]
) -> tuple[GraphDef, Shapes]:
    """Return a copy of a graph with products activated in rows, and its static shapes.

    Every node keeps its name; what activated hands on what is given more axes now.
    """
    made = [_made(each, view, shapes) for each in found]
    return with_new_nodes(graph_def, shapes, made)


def _made(found: Activation, view: GraphView, shapes: Shapes) -> NewNodes:
    product, reshape, last = found.product, found.reshape, found.nodes[-1]
    made = NewNodes(view, shapes, product, product.inputs[0])
    for node in found.nodes[:-1]:
        made.replace(node, _in_rows(node, reshape, product))
        made.shapes[node.name] = found.shape
    rows = made.add(_in_rows(last, reshape, product), "activation", found.shape)
    axes = part_node(reshape.proto, "Reshape", DT_FLOAT)
    axes.input.extend((rows, port_text(view, reshape.inputs[1])))
    made.replace(reshape, axes)
    made.replace(last, handing_on(last, reshape.name))
    return made


def _in_rows(node: Node, reshape: Node, product: Node) -> NodeDef:
    """Return the same operation on the product itself."""
    made = NodeDef()
    made.CopyFrom(node.proto)
    made.attr.pop("_output_shapes", None)
    names = (reshape.name, f"{reshape.name}:0")
    inputs = [product.name if text in names else text for text in made.input]
    made.ClearField("input")
    made.input.extend(inputs)
    return made
