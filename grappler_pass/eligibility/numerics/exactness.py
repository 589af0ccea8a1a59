"""Values that must stay exact: whole numbers in float32, and random draws.

bfloat16 counts to 256 and float16 to 2048, then skips: an id, a position or a length
that passes through either comes out as another. Two graphs must also draw the same
dropout mask from the same seed.

  Cast(int -> float32) --> Mul --> Cast(float32 -> int)     all of it stays float32
  RandomUniform --> GreaterEqual                            the comparison too
  Cast(int -> float32) --> Einsum --> Cos                   large angles, every bit
"""

from __future__ import annotations

from tensorflow.core.framework import types_pb2

from grappler_pass.eligibility.reachability import UNREACHED, spread
from grappler_pass.eligibility.slot_edges import SlotEdges
from grappler_pass.graph.op_table import COUNTING_OPS, TRIGONOMETRIC_OPS
from grappler_pass.graph.op_traits import is_random, magnifies_rounding
from grappler_pass.graph.type_slots import FLOAT32, SlotTable
from grappler_pass.graph.view import GraphView

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
    starts = _Starts(view, slots, exact)
    if not (starts.to_integer or starts.magnified or starts.angles):
        return [UNREACHED] * len(slots.slots)
    is_exact = [origin != UNREACHED for origin in exact]
    plain = [not allow for allow in edges.allow]
    either = [a or b for a, b in zip(plain, is_exact, strict=True)]
    both = [a and b for a, b in zip(plain, is_exact, strict=True)]
    reached = spread(starts.to_integer, edges.sources, either, plain)
    magnified = spread(starts.magnified, edges.sources, both)
    numeric = edges.infer_or_clear
    enters = [a or b for a, b in zip(numeric, edges.allow, strict=True)]
    angles = spread(starts.angles, edges.sources, enters, numeric)
    for slot, holds_exact in enumerate(is_exact):
        if reached[slot] == UNREACHED and magnified[slot] != UNREACHED:
            reached[slot] = magnified[slot]
        if reached[slot] == UNREACHED and holds_exact and angles[slot] != UNREACHED:
            reached[slot] = angles[slot]
    return reached


def _exact_values(view: GraphView, slots: SlotTable, edges: SlotEdges) -> list[int]:
    """Return which slots hold whole numbers or draws; an allow op is the last to."""
    starts: list[int] = []
    for node in view.nodes:
        if node.op == "Cast":
            if slots.input_dtype(node.index, 0) in _WIDE_INTEGERS:
                starts.extend(slots.slots_of[node.index])
        elif node.op in COUNTING_OPS or is_random(node.op):
            starts.extend(slots.slots_of[node.index])
    crosses = [a or b for a, b in zip(edges.infer_or_clear, edges.deny, strict=True)]
    enters = [a or b for a, b in zip(crosses, edges.allow, strict=True)]
    return spread(starts, edges.readers, enters, crosses)


class _Starts:
    """The slots that ask for exact operands."""

    def __init__(self, view: GraphView, slots: SlotTable, exact: list[int]) -> None:
        self.to_integer: list[int] = []
        self.magnified: list[int] = []
        self.angles: list[int] = []
        for node in view.nodes:
            own = slots.slots_of[node.index]
            if not own or slots.dtypes[own[0]] != FLOAT32:
                continue
            if node.op == "Cast":
                if slots.output_dtype(node.index, 0) in _INTEGERS:
                    self.to_integer.append(own[0])
            elif magnifies_rounding(node.op) and exact[own[0]] != UNREACHED:
                self.magnified.append(own[0])
            elif node.op in TRIGONOMETRIC_OPS:
                self.angles.append(own[0])
