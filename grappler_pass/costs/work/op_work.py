"""What a call has to do: its class, its place on that class' axes, flops and bytes.

Decides which measured class stands for an op, and splits fused ops into a product and
what follows it. Seconds are left to the profile and to the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from grappler_pass.costs.calls import DTYPE_BYTES, OpCall, TensorSpec
from grappler_pass.costs.work import op_classes, product_work, recurrent_work
from grappler_pass.costs.work.piece import (
    CACHED_BYTES,
    Work,
    by_elements,
    by_rows,
    bytes_of,
    channel_axis,
    elementwise,
    integers,
)
from grappler_pass.graph.op_table import EINSUM_OPS

_SPLIT_REDUCTION = 512
# Elements of a row; wider ones were not measured.
_WIDEST_COLD = 256


def works_of(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the pieces of ``call`` when its floating values are held in ``dtype``."""
    if call.op in op_classes.FREE_OPS:
        return ()
    builder = _BUILDERS.get(call.op)
    in_place = call.op in op_classes.UPDATES or call.op in op_classes.SEGMENT
    if builder is None or not (call.outputs or in_place):
        return (_other(call, dtype),)
    try:
        return builder(call, dtype)
    except (LookupError, ValueError):
        # A rank that the op does not have, as with an unknown shape.
        return (_other(call, dtype),)


def _other(call: OpCall, dtype: str) -> Work:
    tensors = (spec for spec in call.outputs + call.inputs if spec.dtype != "resource")
    elements = max((spec.elements for spec in tensors), default=1)
    return Work(
        op_classes.ANY_OP, (float(elements),), float(elements), bytes_of(call, dtype)
    )


def _update(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Count a variable and its slots too, which the handles do not show."""
    work = _other(call, dtype)
    moved = op_classes.UPDATES[call.op] * work.flops * DTYPE_BYTES["float32"]
    return (work._replace(bytes_moved=moved),)


def _movement(call: OpCall, dtype: str) -> tuple[Work, ...]:
    elements = float(sum(spec.elements for spec in call.outputs))
    op_class = op_classes.MOVEMENT[call.op]
    return (Work(op_class, (elements,), 0.0, bytes_of(call, dtype)),)


def _plain_elementwise(call: OpCall, dtype: str) -> tuple[Work, ...]:
    op_class = op_classes.ELEMENTWISE[call.op]
    if op_class in op_classes.BROADCAST_CLASSES and len(call.inputs) == 2:
        op_class += _broadcast_suffix(*call.inputs)
    return by_elements(op_class, call, dtype)


def _broadcast_suffix(left: TensorSpec, right: TensorSpec) -> str:
    large, small = sorted((left, right), key=lambda spec: -spec.elements)
    if small.elements == large.elements:
        return ""
    if small.elements == 1:
        return ".scalar"
    return ".column" if small.dims[-1:] == (1,) else ".row"


def _add_n(call: OpCall, dtype: str) -> tuple[Work, ...]:
    elements = call.outputs[0].elements
    extra = max(len(call.inputs) - 1, 1)
    return (elementwise("AddV2", elements, dtype, 3)._replace(scale=float(extra)),)


def _reduction(call: OpCall, dtype: str) -> tuple[Work, ...]:
    source, target = call.inputs[0], call.outputs[0]
    kept = max(target.elements, 1)
    reduced = max(source.elements // kept, 1)
    if kept == 1 and reduced > _SPLIT_REDUCTION:
        # Down to a scalar: done in pieces, as if along rows.
        kept, reduced = reduced // _SPLIT_REDUCTION, _SPLIT_REDUCTION
    # The axes are a value of the graph; the shapes tell which end they lie at.
    last_is_kept = target.dims[-1:] == source.dims[-1:] and target.elements > 1
    where = "outer" if last_is_kept and source.dims[-1:] != (1,) else "inner"
    op_class = f"{op_classes.REDUCTIONS[call.op]}.{where}"
    elements = float(source.elements)
    return (Work(op_class, (kept, reduced), elements, bytes_of(call, dtype)),)


def _rows(op_class: str, call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Count rows and columns of the first operand."""
    spec = call.inputs[0]
    work = by_rows(op_class, spec.elements, spec.dims[channel_axis(call)], dtype)
    return (work._replace(bytes_moved=bytes_of(call, dtype)),)


def _batch_norm(call: OpCall, dtype: str) -> tuple[Work, ...]:
    op_class = op_classes.BATCH_NORMS[call.op]
    training = call.attrs.get("is_training", True)
    op_class += ".training" if training else ".inference"
    if call.inputs[0].dims[channel_axis(call)] % op_classes.CHANNEL_BLOCK:
        op_class += op_classes.UNALIGNED
    return _rows(op_class, call, dtype)


def _gather(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Count rows read and written; the table they come from stays where it is."""
    output = call.outputs[0]
    width = _row_width(call)
    rows = output.elements // max(width, 1)
    moved = 2.0 * output.bytes_as(dtype)
    op_class = "gather" + _coldness(call.inputs[0], width)
    return (Work(op_class, (rows, width), 0.0, moved),)


def _row_width(call: OpCall) -> int:
    """Return how many elements lie together of what is gathered: rows of any rank."""
    table, indices = call.inputs[:2]
    output = call.outputs[0].dims
    row = output[len(indices.dims) :]
    if table.dtype == "resource" or table.dims[1:] == row:
        return math.prod(row)
    return output[-1] if len(output) > 1 else 1


def _segment(call: OpCall, dtype: str) -> tuple[Work, ...]:
    spec = max(call.inputs[:3], key=lambda spec: spec.bytes_as(dtype))
    width = spec.dims[-1]
    rows = spec.elements // max(width, 1)
    table = call.inputs[0]
    cold = _coldness(table, width) if table.dtype == "resource" else ""
    op_class = f"segment{cold}"
    return (Work(op_class, (rows, width), spec.elements, bytes_of(call, dtype)),)


def _coldness(table: TensorSpec, width: int) -> str:
    """Return the suffix of a class whose rows are not in the cache, of either type.

    Wide rows are read ahead.
    """
    known = table.shape is not None and width <= _WIDEST_COLD
    cold = table.elements * DTYPE_BYTES["float32"] > CACHED_BYTES
    return op_classes.COLD if known and cold else ""


def _pool(call: OpCall, dtype: str) -> tuple[Work, ...]:
    window = math.prod(integers(call.attrs.get("ksize"))) or 4
    small = min(
        (spec.elements for spec in call.inputs + call.outputs if len(spec.dims) == 4),
        default=call.outputs[0].elements,
    )
    op_class = f"pool.{call.op}"
    return (Work(op_class, (small, window), small * window, bytes_of(call, dtype)),)


_BUILDERS: dict[str, Callable[[OpCall, str], tuple[Work, ...]]] = {
    **dict.fromkeys(op_classes.ELEMENTWISE, _plain_elementwise),
    **dict.fromkeys(op_classes.MOVEMENT, _movement),
    **dict.fromkeys(op_classes.REDUCTIONS, _reduction),
    **{op: partial(_rows, op) for op in op_classes.SOFTMAX},
    **dict.fromkeys(op_classes.CROSS_ENTROPY, partial(_rows, "cross_entropy")),
    **dict.fromkeys(op_classes.GATHER, _gather),
    **dict.fromkeys(op_classes.SEGMENT, _segment),
    **dict.fromkeys(op_classes.MATMULS, product_work.matmul),
    **dict.fromkeys(op_classes.BATCH_MATMULS, product_work.batch_matmul),
    **dict.fromkeys(op_classes.CONVOLUTIONS, product_work.convolution),
    **dict.fromkeys(op_classes.DEPTHWISE, product_work.depthwise),
    **dict.fromkeys(op_classes.BATCH_NORMS, _batch_norm),
    **dict.fromkeys(op_classes.POOLS, _pool),
    **dict.fromkeys(EINSUM_OPS, product_work.einsum),
    "XlaDot": product_work.xla_dot,
    "XlaConv": product_work.xla_convolution,
    **dict.fromkeys(recurrent_work.BLOCK_LSTM, recurrent_work.block_lstm),
    **dict.fromkeys(recurrent_work.CUDNN, recurrent_work.cudnn),
    **dict.fromkeys(("GRUBlockCell", "GRUBlockCellGrad"), recurrent_work.gru_cell),
    "LSTMBlockCell": recurrent_work.lstm_cell,
    "LSTMBlockCellGrad": recurrent_work.lstm_cell_gradient,
    **dict.fromkeys(op_classes.UPDATES, _update),
    "AddN": _add_n,
    "BiasAdd": partial(_rows, "BiasAdd"),
    "BiasAddGrad": partial(_rows, "BiasAddGrad"),
    "_MklLayerNorm": partial(_rows, "LayerNorm"),
}
