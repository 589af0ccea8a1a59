"""Shapes of a stored graph: as they were written with it, else by importing it."""

from __future__ import annotations

import itertools

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.functions.conversion import Known
from grappler_pass.graph.shapes import (
    Shape,
    Shapes,
    shape_from_proto,
    shapes_from_graph_def,
)
from tf_amp.measuring.sandbox.roles import HANDLES
from tf_amp.tools.graph_runs.batches import set_batch

SHAPES = "_output_shapes"


def stored_shapes(graph_def: GraphDef, batch: int | None = None) -> Shapes:
    """Return the shapes of every node's outputs, as far as they are known.

    Of a graph as stored, or made of a stored function; `batch` stands for an unknown
    first dimension, None leaves it unknown.
    """
    shapes = {node.name: _written(node) for node in graph_def.node if _has_shapes(node)}
    if batch is None:
        missing = (node for node in graph_def.node if _needs_shape(node))
        if any(node.name not in shapes for node in missing):
            shapes = _imported(graph_def) or shapes
        return shapes
    inferred = _imported(_with_batch_of_arguments(graph_def, batch))
    return {
        name: tuple(
            _known_or(found, _with_batch(shape, batch))
            for shape, found in itertools.zip_longest(outputs, inferred.get(name, ()))
        )
        for name, outputs in {**inferred, **shapes}.items()
    }


def known_arguments(function: FunctionDef) -> tuple[Known, ...]:
    """Return what the reads of variables in a function tell of its handles."""
    contents: dict[str, tuple[int, Shape | None]] = {}
    for node in function.node_def:
        if node.op == "ReadVariableOp" and _has_shapes(node):
            (shape,) = _written(node) or (None,)
            contents[node.input[0]] = (int(node.attr["dtype"].type), shape)
    arguments = (str(arg.name) for arg in function.signature.input_arg)
    return tuple(
        Known(contents=(contents[name],)) if name in contents else Known()
        for name in arguments
    )


def _has_shapes(node: NodeDef) -> bool:
    # `in` first: reading a missing key of a protobuf map creates it.
    return SHAPES in node.attr


def _written(node: NodeDef) -> tuple[Shape | None, ...]:
    return tuple(shape_from_proto(s) for s in node.attr[SHAPES].list.shape)


def _needs_shape(node: NodeDef) -> bool:
    """Say whether a price hangs on it; a result is an Identity without attributes."""
    return node.op not in HANDLES and len(node.attr) > 1


def _imported(graph_def: GraphDef) -> dict[str, tuple[Shape | None, ...]]:
    """Return what TensorFlow infers; nothing where it cannot import the graph."""
    try:
        return dict(shapes_from_graph_def(graph_def))
    except Exception:
        # An unknown op, or a version of one: prices are then guesses.
        return {}


def _with_batch_of_arguments(graph_def: GraphDef, batch: int) -> GraphDef:
    """Return a copy whose arguments have a size where their batch is open.

    What follows from it, as the rows of a product of several axes, is then inferred.
    """
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    for node in copy.node:
        node.attr.pop(SHAPES, None)
    set_batch(copy, batch)
    return copy


def _known_or(found: Shape | None, otherwise: Shape | None) -> Shape | None:
    is_known = found is not None and None not in found
    return found if is_known else otherwise


def _with_batch(shape: Shape | None, batch: int) -> Shape | None:
    if not shape or shape[0] is not None:
        return shape
    return (batch, *shape[1:])
