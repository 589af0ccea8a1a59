"""Values that 16 bits do not hold: constants, whole numbers, and random draws.

A mask of -1e9 becomes -inf in float16, and a row that is masked whole turns into NaN;
an epsilon of 1e-12 becomes zero in front of a division. What such a constant goes into
stays float32 up to the next allow op, and so does an allow op that reads it unchanged.

bfloat16 counts to 256 and float16 to 2048, then skips: an id, a position or a length
that passes through either comes out as another. Two graphs must also draw the same
dropout mask from the same seed.

  Cast(int -> float32) --> Mul --> Cast(float32 -> int)     all of it stays float32
  RandomUniform --> GreaterEqual                            the comparison too
  Cast(int -> float32) --> Einsum --> Cos                   large angles, every bit
"""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_pb2 import TensorProto

from grappler_pass.eligibility.regions import (
    UNREACHED,
    SlotEdges,
    first_of,
    spread,
)
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_table import ALLOW, CLEAR, DENY, INFER
from grappler_pass.graph.op_traits import is_random, magnifies_rounding
from grappler_pass.graph.type_slots import FLOAT32, SlotTable
from grappler_pass.graph.view import GraphView

# Magnitudes from the first on, halfway between the largest finite value and the next
# power of two, round to infinity. Those below the second lose bits.
_LIMITS = {
    types_pb2.DT_HALF: (65520.0, 2.0**-14),
    types_pb2.DT_BFLOAT16: ((2.0 - 2.0**-8) * 2.0**127, 0.0),
}


def out_of_range_slots(
    view: GraphView, slots: SlotTable, edges: SlotEdges, low_dtype: int
) -> list[int]:
    """Return for every slot a constant's slot that keeps it float32, or UNREACHED."""
    overflow, normal = _LIMITS[low_dtype]
    large: list[int] = []
    small: list[int] = []
    for node in view.nodes:
        own = slots.slots_of[node.index]
        if node.op != "Const" or not own or slots.dtypes[own[0]] != FLOAT32:
            continue
        values = values_of(node.proto.attr["value"].tensor)
        if _reaches(values, overflow):
            large.append(own[0])
        elif values.size == 1 and 0.0 < abs(float(values[0])) < normal:
            small.append(own[0])
    computed = spread([*large, *small], edges.readers, edges.on(INFER, CLEAR))
    unchanged = spread(large, edges.readers, edges.on(ALLOW, CLEAR), edges.on(CLEAR))
    return first_of(computed, unchanged)


def values_of(tensor: TensorProto) -> np.ndarray:
    """Return a float32 tensor's values, a repeated one once."""
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype="<f4")
    return np.fromiter(tensor.float_val, np.float32, len(tensor.float_val))


def _reaches(values: np.ndarray, overflow: float) -> bool:
    magnitudes = np.abs(values)
    return bool((np.isfinite(magnitudes) & (magnitudes >= overflow)).any())


# Integers too wide for 8 significant bits; images and masks (uint8, bool) are not.
_WIDE_INTEGERS = frozenset(
    {
        types_pb2.DT_INT16,
        types_pb2.DT_INT32,
        types_pb2.DT_INT64,
        types_pb2.DT_UINT16,
        types_pb2.DT_UINT32,
        types_pb2.DT_UINT64,
    }
)
_INTEGERS = _WIDE_INTEGERS | {types_pb2.DT_INT8, types_pb2.DT_UINT8}


def exact_slots(view: GraphView, slots: SlotTable, edges: SlotEdges) -> list[int]:
    """Return for every slot the slot that asks it to stay exact, or UNREACHED.

    Three things ask: a cast to integers, of all that it is computed from, back to allow
    ops; a comparison, a rounding, a logarithm or a trigonometric function, of those
    operands that hold exact values.
    """
    exact = _exact_values(view, slots, edges)
    is_exact = [start != UNREACHED for start in exact]
    to_integer: list[int] = []
    magnified: list[int] = []
    angles: list[int] = []
    for node in view.nodes:
        own = slots.slots_of[node.index][:1]
        if not own or slots.dtypes[own[0]] != FLOAT32:
            continue
        if node.op == "Cast":
            if slots.output_dtype(node.index, 0) in _INTEGERS:
                to_integer += own
        elif magnifies_rounding(node.op) and is_exact[own[0]]:
            magnified += own
        elif node.op in table.TRIGONOMETRIC_OPS:
            angles += own
    plain = [name != ALLOW for name in edges.lists]
    either = [a or b for a, b in zip(plain, is_exact, strict=True)]
    both = [a and b for a, b in zip(plain, is_exact, strict=True)]
    numeric, any_product = edges.on(INFER, CLEAR), edges.on(INFER, CLEAR, ALLOW)
    behind_angles = spread(angles, edges.sources, any_product, numeric)
    return first_of(
        spread(to_integer, edges.sources, either, plain),
        spread(magnified, edges.sources, both),
        [a if b else UNREACHED for a, b in zip(behind_angles, is_exact, strict=True)],
    )


def _exact_values(view: GraphView, slots: SlotTable, edges: SlotEdges) -> list[int]:
    """Return which slots hold whole numbers or draws; an allow op is the last to."""
    starts: list[int] = []
    for node in view.nodes:
        if node.op == "Cast":
            if slots.input_dtype(node.index, 0) in _WIDE_INTEGERS:
                starts.extend(slots.slots_of[node.index])
        elif node.op in table.COUNTING_OPS or is_random(node.op):
            starts.extend(slots.slots_of[node.index])
    crosses = edges.on(INFER, CLEAR, DENY)
    return spread(starts, edges.readers, edges.on(INFER, CLEAR, DENY, ALLOW), crosses)
