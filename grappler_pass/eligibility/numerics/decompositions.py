"""Products beside a matrix decomposition, which magnifies how they are rounded.

A covariance rounded to 16 bits may have no Cholesky factor any more, and the entries of
an inverse cancel in the next product.

  MatMul --> AddV2 --> Cholesky --> MatrixTriangularSolve --> Neg --> MatMul

All of it stays float32: the walks in both directions end with the first product. What
that reads may be rounded: the covariance of rounded vectors is a covariance.
"""

from __future__ import annotations

from grappler_pass.eligibility.reachability import UNREACHED, spread
from grappler_pass.eligibility.slot_edges import SlotEdges
from grappler_pass.graph.op_table import DECOMPOSING_OPS
from grappler_pass.graph.type_slots import FLOAT32, SlotTable
from grappler_pass.graph.view import GraphView


def slots_beside_decompositions(
    view: GraphView, slots: SlotTable, edges: SlotEdges
) -> list[int]:
    """Return for every slot the decomposition that keeps it float32, or UNREACHED."""
    starts = [
        slot
        for node in view.nodes
        if node.op in DECOMPOSING_OPS
        for slot in slots.slots_of[node.index]
        if slots.dtypes[slot] == FLOAT32
    ]
    if not starts:
        return [UNREACHED] * len(slots.slots)
    numeric = edges.infer_or_clear
    enters = [a or b for a, b in zip(numeric, edges.allow, strict=True)]
    operands = spread(starts, edges.sources, enters, numeric)
    results = spread(starts, edges.readers, enters, numeric)
    return [
        result if operand == UNREACHED else operand
        for operand, result in zip(operands, results, strict=True)
    ]
