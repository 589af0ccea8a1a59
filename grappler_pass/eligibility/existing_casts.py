"""Casts that a graph has as it is given, and which values a type can hold.

A chain A -> B -> C is A -> C only if B represents every value of A; if A is C too, the
pair disappears. `represents` decides, for every rule here and where casts are put.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.variable_reads import VariableReads
from grappler_pass.graph.type_slots import FLOAT32
from grappler_pass.graph.view import GraphView, Node, Port


class _Format(NamedTuple):
    """Significant bits, exponents of the smallest and largest finite value, sign."""

    significand: int
    smallest: int
    largest: int
    signed: bool = True


# The smallest exponent is that of the smallest subnormal.
_FORMATS = {
    types_pb2.DT_HALF: _Format(11, -24, 15),
    types_pb2.DT_BFLOAT16: _Format(8, -133, 127),
    types_pb2.DT_FLOAT: _Format(24, -149, 127),
    types_pb2.DT_DOUBLE: _Format(53, -1074, 1023),
    types_pb2.DT_BOOL: _Format(1, 0, 0, signed=False),
    types_pb2.DT_INT8: _Format(7, 0, 7),
    types_pb2.DT_UINT8: _Format(8, 0, 7, signed=False),
    types_pb2.DT_INT16: _Format(15, 0, 15),
    types_pb2.DT_UINT16: _Format(16, 0, 15, signed=False),
    types_pb2.DT_INT32: _Format(31, 0, 31),
    types_pb2.DT_UINT32: _Format(32, 0, 31, signed=False),
    types_pb2.DT_INT64: _Format(63, 0, 63),
    types_pb2.DT_UINT64: _Format(64, 0, 63, signed=False),
}
_FLOATS = frozenset(
    {
        types_pb2.DT_HALF,
        types_pb2.DT_BFLOAT16,
        types_pb2.DT_FLOAT,
        types_pb2.DT_DOUBLE,
    }
)
NUMPY_DTYPES = {
    types_pb2.DT_HALF: np.dtype(np.float16),
    types_pb2.DT_BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    types_pb2.DT_FLOAT: np.dtype(np.float32),
}


def represents(wide: int, narrow: int) -> bool:
    """Return whether `wide` holds every value of `narrow` exactly (DataType enums).

    Integers count as representable in a float of enough significant bits and range;
    nothing but itself is known to hold a type outside the table.
    """
    if wide == narrow:
        return True
    if wide not in _FORMATS or narrow not in _FORMATS:
        return False
    if narrow in _FLOATS and wide not in _FLOATS:
        return False
    outer, inner = _FORMATS[wide], _FORMATS[narrow]
    return (
        outer.significand >= inner.significand
        and outer.smallest <= inner.smallest
        and outer.largest >= inner.largest
        and outer.signed >= inner.signed
    )


def is_cast(node: Node) -> bool:
    """Return whether `node` is a rounding Cast, the only kind that fuses."""
    truncates = "Truncate" in node.proto.attr and node.proto.attr["Truncate"].b
    return node.op == "Cast" and not truncates


def source_dtype(node: Node) -> int:
    """Return SrcT of a Cast."""
    return int(node.proto.attr["SrcT"].type)


def target_dtype(node: Node) -> int:
    """Return DstT of a Cast."""
    return int(node.proto.attr["DstT"].type)


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
    preserved = cast.name in view.item.untouchable
    if not is_cast(cast) or target_dtype(cast) != FLOAT32 or preserved or cast.controls:
        return port, FLOAT32
    (source,), dtype = cast.inputs, source_dtype(cast)
    if not represents(FLOAT32, dtype) or source in reads.refs.ports:
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
