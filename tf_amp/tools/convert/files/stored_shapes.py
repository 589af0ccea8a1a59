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
from tf_amp.tools.graph_runs.batches import set_batch

SHAPES = "_output_shapes"
_ARGUMENTS = ("_Arg", "Placeholder", "VarHandleOp")


def stored_shapes(graph_def: GraphDef, batch: int | None = None) -> Shapes:
    """Return the shapes of every node's outputs, as far as they are known.

    Of a graph as stored, or made of a stored function; `batch` stands for an unknown
    first dimension, None leaves it unknown.
    """
    shapes = {node.name: _written(node) for node in graph_def.node if _is_told(node)}
    if batch is None:
        # Of these a price hangs on it; a result is an Identity without attributes.
        priced = (
            n for n in graph_def.node if n.op not in _ARGUMENTS and len(n.attr) > 1
        )
        if any(node.name not in shapes for node in priced):
            shapes = _imported(graph_def) or shapes
        return shapes
    # What follows from a size of the arguments, as the rows of a product of several
    # axes, is inferred.
    copy = type(graph_def)()
    copy.CopyFrom(graph_def)
    for node in copy.node:
        node.attr.pop(SHAPES, None)
    set_batch(copy, batch)
    inferred = _imported(copy)
    return {
        name: tuple(
            _known(found, shape, batch)
            for shape, found in itertools.zip_longest(outputs, inferred.get(name, ()))
        )
        for name, outputs in {**inferred, **shapes}.items()
    }


def known_arguments(function: FunctionDef) -> tuple[Known, ...]:
    """Return what the reads of variables in a function tell of its handles."""
    contents: dict[str, tuple[int, Shape | None]] = {}
    for node in function.node_def:
        if node.op == "ReadVariableOp" and _is_told(node):
            (shape,) = _written(node) or (None,)
            contents[node.input[0]] = (int(node.attr["dtype"].type), shape)
    arguments = (str(arg.name) for arg in function.signature.input_arg)
    return tuple(
        Known(contents=(contents[name],)) if name in contents else Known()
        for name in arguments
    )


def _is_told(node: NodeDef) -> bool:
    # `in` first: reading a missing key of a protobuf map creates it.
    return SHAPES in node.attr


def _written(node: NodeDef) -> tuple[Shape | None, ...]:
    return tuple(shape_from_proto(s) for s in node.attr[SHAPES].list.shape)


def _imported(graph_def: GraphDef) -> dict[str, tuple[Shape | None, ...]]:
    """Return what TensorFlow infers; nothing where it cannot import the graph."""
    try:
        return dict(shapes_from_graph_def(graph_def))
    except Exception:
        # An unknown op, or a version of one: prices are then guesses.
        return {}


def _known(found: Shape | None, otherwise: Shape | None, batch: int) -> Shape | None:
    """Return what was found if all of it is known, else the other one with a batch."""
    if found is not None and None not in found:
        return found
    if not otherwise or otherwise[0] is not None:
        return otherwise
    return (batch, *otherwise[1:])
