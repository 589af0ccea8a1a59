"""Constants that a 16-bit type cannot hold, and what computes with them.

A mask of -1e9 becomes -inf in float16, and a row that is masked whole turns into NaN;
an epsilon of 1e-12 becomes zero in front of a division. What such a constant goes into
stays float32 up to the next allow op, and so does an allow op that reads it unchanged.
"""

from __future__ import annotations

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_pb2 import TensorProto

from grappler_pass.eligibility.reachability import first_of, spread
from grappler_pass.eligibility.slot_edges import SlotEdges
from grappler_pass.graph.op_table import ALLOW, CLEAR, INFER
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
