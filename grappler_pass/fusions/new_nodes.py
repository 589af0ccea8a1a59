"""What a rewrite beside types puts into a graph, and the graph with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32
from tensorflow.python.framework import tensor_util

from grappler_pass.annotations import mark
from grappler_pass.eligibility.fused_ops import part_node
from grappler_pass.fusions.passes import PricedGraph
from grappler_pass.graph.shapes import Shape, Shapes
from grappler_pass.graph.view import GraphView, Node, Port, port_text

# What is computed of constants.
_FOLDED: dict[str, Callable[..., np.ndarray]] = {
    "Mul": np.multiply,
    "AddV2": np.add,
    "Reshape": np.reshape,
}


class NewNodes:
    """The nodes of one rewrite.

    Attributes:
      replaced: in the place of nodes of the same names.
      added: further ones.
      shapes: of those that are added, and of those that get another, by name.
    """

    def __init__(self, graph: PricedGraph, root: Node, anchor: Port) -> None:
        """Begin without any.

        Args:
          graph: that they are for.
          root: further nodes are called after it, and are on its device.
          anchor: what it reads; constants wait for that, and so are in its loop.
        """
        self._graph = graph
        self._root = root
        self._anchor = anchor
        self.replaced: list[NodeDef] = []
        self.added: list[NodeDef] = []
        self.shapes: dict[str, Shape] = {}

    def replace(self, given: Node, made: NodeDef) -> NodeDef:
        """Put a node in the place of a given one, under its name."""
        made.name = given.name
        made.input.extend(text for text in controls(given) if text not in made.input)
        mark(made, given.proto)
        self.replaced.append(made)
        return made

    def hand_on(self, given: Node, name: str) -> None:
        """Have a given node hand on the float32 result of another."""
        self.replace(given, part_of(given, "Identity", name))

    def add(self, node: NodeDef, what: str, shape: Shape) -> str:
        """Take in a further node, and return its name."""
        name = f"{self._root.name}/tf_amp_{len(self.added)}_{what}"
        node.name = name
        node.device = self._root.device
        mark(node, self._root.proto)
        self.added.append(node)
        self.shapes[name] = shape
        return name

    def computed(self, op: str, what: str, inputs: Sequence[str], shape: Shape) -> str:
        """Take in a further float32 operation, and return its name.

        Of constants alone that is a constant, too: its result.
        """
        operands = [self._constant(text) for text in inputs]
        known = [tensor_util.MakeNdarray(c) for c in operands if c is not None]
        if len(known) == len(inputs):
            result = constant(
                self._graph.view, self._anchor, _FOLDED[op](*known), DT_FLOAT
            )
            return self.add(result, what, shape)
        node = NodeDef(op=op, input=inputs)
        node.attr["T"].type = DT_FLOAT
        if op == "Reshape":
            node.attr["Tshape"].type = DT_INT32
        return self.add(node, what, shape)

    def _constant(self, name: str) -> TensorProto | None:
        """Return the value of a constant of the graph, or of a further one."""
        view = self._graph.view
        given = [view.nodes[view.index[name]].proto] if name in view.index else []
        nodes = (*given, *(node for node in self.added if node.name == name))
        return next((n.attr["value"].tensor for n in nodes if n.op == "Const"), None)

    def shaped(self, port: Port, shape: tuple[int, ...]) -> str:
        """Return what holds the values of a port in some shape."""
        text = port_text(self._graph.view, port)
        if self._graph.shape(port) == shape:
            return text
        return self.computed("Reshape", "values", (text, self.sizes(shape)), shape)

    def sizes(self, shape: tuple[int, ...]) -> str:
        """Return a constant that holds a shape."""
        node = constant(self._graph.view, self._anchor, shape, DT_INT32)
        return self.add(node, "shape", (len(shape),))


def controls(node: Node) -> list[str]:
    """Return the control inputs of a node."""
    return [text for text in node.proto.input if text.startswith("^")]


def part_of(node: Node, op: str, *inputs: str) -> NodeDef:
    """Return a float32 node of `op` with a node's device and what attributes fit."""
    made = part_node(node.proto, op, DT_FLOAT)
    made.input.extend(inputs)
    return made


def constant(
    view: GraphView,
    anchor: Port,
    value: float | Sequence[int] | np.ndarray,
    dtype: int,
    shape: Sequence[int] | None = None,
) -> NodeDef:
    """Return a constant that waits for a port, and so is in its loop."""
    node = NodeDef(op="Const", input=[f"^{view.nodes[anchor.node].name}"])
    tensor = tensor_util.make_tensor_proto(value, dtype, shape)
    node.attr["value"].tensor.CopyFrom(tensor)
    node.attr["dtype"].type = dtype
    return node


def with_inputs(node: Node, others: dict[str, str]) -> NodeDef:
    """Return the same operation on other values, by the names of those given."""
    made = NodeDef()
    made.CopyFrom(node.proto)
    made.input[:] = [others.get(text, text) for text in made.input]
    return made


def with_new_nodes(
    graph_def: GraphDef, shapes: Shapes, made: Sequence[NewNodes]
) -> tuple[GraphDef, Shapes]:
    """Return a copy of a graph with what was made for it, and its static shapes."""
    replaced = {node.name: node for each in made for node in each.replaced}
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(replaced.get(node.name, node) for node in graph_def.node)
    result.node.extend(node for each in made for node in each.added)
    known = {name: (shape,) for each in made for name, shape in each.shapes.items()}
    return result, {**shapes, **known}
