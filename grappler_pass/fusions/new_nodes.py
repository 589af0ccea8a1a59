"""What a rewrite beside types puts into a graph, and the graph with it."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32
from tensorflow.python.framework import tensor_util

from grappler_pass.annotations import mark
from grappler_pass.eligibility.fused_ops import part_node
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.view import GraphView, Node, Port, port_text


class NewNodes:
    """The nodes of one rewrite.

    Attributes:
      replaced: in the place of nodes of the same names.
      added: further ones.
      shapes: of those that are added, and of those that get another, by name.
    """

    def __init__(
        self, view: GraphView, shapes: Shapes, root: Node, anchor: Port
    ) -> None:
        """Begin without any.

        Args:
          view: of the graph.
          shapes: static ones of the graph.
          root: further nodes are called after it, and are on its device.
          anchor: what it reads; constants wait for that, and so are in its loop.
        """
        self._view = view
        self._given = shapes
        self._root = root
        self._anchor = view.nodes[anchor.node].name
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
        """Take in a further float32 operation, and return its name."""
        node = NodeDef(op=op, input=inputs)
        node.attr["T"].type = DT_FLOAT
        if op == "Reshape":
            node.attr["Tshape"].type = DT_INT32
        return self.add(node, what, shape)

    def shaped(self, port: Port, shape: tuple[int, ...]) -> str:
        """Return what holds the values of a port in some shape."""
        text = port_text(self._view, port)
        if known_shape(self._given, self._view, port) == shape:
            return text
        return self.computed("Reshape", "values", (text, self.sizes(shape)), shape)

    def sizes(self, shape: tuple[int, ...]) -> str:
        """Return a constant that holds a shape."""
        node = NodeDef(op="Const", input=[f"^{self._anchor}"])
        value = tensor_util.make_tensor_proto(shape, DT_INT32)
        node.attr["value"].tensor.CopyFrom(value)
        node.attr["dtype"].type = DT_INT32
        return self.add(node, "shape", (len(shape),))


def controls(node: Node) -> list[str]:
    """Return the control inputs of a node."""
    return [text for text in node.proto.input if text.startswith("^")]


def handing_on(node: Node, name: str) -> NodeDef:
    """Return what hands on the float32 result of another node in the place of this."""
    made = part_node(node.proto, "Identity", DT_FLOAT)
    made.input.append(name)
    return made


def with_new_nodes(
    graph_def: GraphDef,
    shapes: Shapes,
    made: Sequence[NewNodes],
) -> tuple[GraphDef, Shapes]:
    """Return a copy of a graph with what was made for it, and its static shapes."""
    replaced = {node.name: node for each in made for node in each.replaced}
    result = GraphDef()
    result.versions.CopyFrom(graph_def.versions)
    result.library.CopyFrom(graph_def.library)
    result.node.extend(replaced.get(node.name, node) for node in graph_def.node)
    result.node.extend(node for each in made for node in each.added)
    known = {name: (shape,) for each in made for name, shape in each.shapes.items()}
    return result, {**shapes, **known}
