"""Casts that a graph has as it is given, and what of them a new cast can skip."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.variable_reads import VariableReads
from grappler_pass.graph.type_slots import FLOAT32, attr_of
from grappler_pass.graph.view import GraphView, Node, Port

# A chain A -> float32 -> C is A -> C for these A alone: float32 holds all their values.
HELD_BY_FLOAT32 = frozenset(
    {
        types_pb2.DT_FLOAT,
        types_pb2.DT_HALF,
        types_pb2.DT_BFLOAT16,
        types_pb2.DT_BOOL,
        types_pb2.DT_INT8,
        types_pb2.DT_UINT8,
        types_pb2.DT_INT16,
        types_pb2.DT_UINT16,
    }
)
NUMPY_DTYPES = {
    types_pb2.DT_HALF: np.dtype(np.float16),
    types_pb2.DT_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    types_pb2.DT_FLOAT: np.dtype(np.float32),
}


def is_cast(node: Node) -> bool:
    """Return whether `node` is a rounding Cast, the only kind that fuses."""
    return node.op == "Cast" and not attr_of(node.proto, "Truncate").b


def cast_types(node: Node) -> tuple[int, int]:
    """Return SrcT and DstT of a Cast."""
    return int(node.proto.attr["SrcT"].type), int(node.proto.attr["DstT"].type)


def is_foldable(view: GraphView, port: Port) -> bool:
    """Return whether a tensor can be cast before the graph runs: a constant.

    Not so one that its caller relies on, who may feed something else in its place: a
    Session takes any constant for an input.
    """
    node = view.nodes[port.node]
    return node.op == "Const" and node.name not in view.item.untouchable


def before_cast(view: GraphView, reads: VariableReads, port: Port) -> tuple[Port, int]:
    """Return the tensor and dtype a float32 port's value can be cast from directly.

    Before   int8 --> cast --> f32 --> cast_down --> matmul(low)
    After    int8 --> cast_down --> matmul(low)

    Not done: through an int32, whose values float32 does not all represent; past a cast
    that its caller relies on, and may feed something else than what it reads; past one
    that waits for more than its value, as what reads it then does; past one that tells
    what a variable held before it is written.
    """
    cast = view.nodes[port.node]
    if not is_cast(cast) or cast.name in view.item.untouchable or cast.controls:
        return port, FLOAT32
    (source,), (dtype, target) = cast.inputs, cast_types(cast)
    if target != FLOAT32 or dtype not in HELD_BY_FLOAT32 or source in reads.refs.ports:
        return port, FLOAT32
    return source, dtype


def is_free_down(
    view: GraphView, reads: VariableReads, port: Port, low_dtype: int
) -> bool:
    """Return whether `port` costs nothing to have in the low dtype.

    True of a constant, cast before the graph runs (where the graph is stored, by
    TensorFlow that loads it), and of a tensor that was cast up from the same low dtype.
    """
    if is_foldable(view, port):
        return True
    return before_cast(view, reads, port)[1] == low_dtype
