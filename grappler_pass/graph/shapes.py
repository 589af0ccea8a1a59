"""Static shapes of every output of a graph.

Inside the optimizer TensorFlow's own inference is asked through its C API (`plugin`),
which has the graph already; elsewhere the GraphDef is imported. Where neither shows it,
a shape is None (rank unknown) or one of its sizes is None. Shapes price a plan, they
never decide what is correct: an empty mapping is a legal answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto

from grappler_pass.graph.view import Graph, Port

# Before this version of graphs, no sizes of a placeholder were not a scalar's shape but
# an unknown one.
_SCALARS_SINCE = 24

Shape = tuple[int | None, ...]
Shapes = Mapping[str, tuple[Shape | None, ...]]


def shapes_from_graph_def(graph_def: GraphDef) -> Shapes:
    """Return the shapes that importing a GraphDef, with its functions, finds.

    Raises:
      ValueError: TensorFlow cannot import the graph.
    """
    copy = GraphDef()
    copy.CopyFrom(graph_def)
    # What is made of functions has no version.
    copy.versions.producer = copy.versions.producer or _SCALARS_SINCE
    for node in copy.node:
        # Devices take half the time of an import.
        node.ClearField("device")
        node.attr.pop("_class", None)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(copy, name="")
    shaped = graph.as_graph_def(add_shapes=True)
    return {
        node.name: tuple(map(shape_from_proto, node.attr["_output_shapes"].list.shape))
        for node in shaped.node
        if "_output_shapes" in node.attr
    }


def known_shape(shapes: Shapes, view: Graph, port: Port) -> Shape | None:
    """Return the shape of a port; None where it is unknown."""
    outputs = shapes.get(view.nodes[port.node].name, ())
    return outputs[port.output] if port.output < len(outputs) else None


def shape_from_proto(proto: TensorShapeProto) -> Shape | None:
    """Return sizes by axis; negative ones, which stand for unknown, as None."""
    if proto.unknown_rank:
        return None
    return tuple([size if (size := axis.size) >= 0 else None for axis in proto.dim])


def proto_from_shape(shape: Shape | None) -> TensorShapeProto:
    """Return the proto that `shape_from_proto` reads back."""
    if shape is None:
        return TensorShapeProto(unknown_rank=True)
    sizes = (-1 if size is None else size for size in shape)
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=size) for size in sizes])


def variable_shape(proto: NodeDef) -> Shape | None:
    """Return the shape of the variable that a node hands out; None if not known."""
    attr = proto.attr
    if proto.op == "VarHandleOp" and "shape" in attr:
        return shape_from_proto(attr["shape"].shape)
    if "_handle_shapes" in attr and attr["_handle_shapes"].list.shape:
        return shape_from_proto(attr["_handle_shapes"].list.shape[0])
    return None


def static(shape: Shape | None) -> tuple[int, ...] | None:
    """Return a shape of which every size is known, else None."""
    sizes = tuple(size for size in shape or () if size is not None)
    return sizes if shape is not None and len(sizes) == len(shape) else None
