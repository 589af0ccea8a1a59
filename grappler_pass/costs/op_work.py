"""What a call has to do: its class, its place on that class' axes, flops and bytes.

Decides which measured class stands for an op, and splits fused ops into a product and
what follows it. Seconds are left to the profile and to the roofline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from grappler_pass.costs import op_classes
from grappler_pass.costs.calls import DTYPE_BYTES, OpCall, TensorSpec

Dims = tuple[int, ...]

# No 16-bit kernel is registered for these: there, they run as their parts.
SPLIT_IN_BFLOAT16 = frozenset({"_FusedConv2D", "_FusedConv3D"})


@dataclass(frozen=True, slots=True)
class Work:
    """One piece of a call.

    Args:
        op_class: row of ``op_classes``; empty for a piece that costs nothing.
        point: a size along each axis of the class.
        flops: multiplications and additions, as usually counted.
        bytes_moved: read and written.
        scale: factor on the measured seconds, for work like the measured but larger.
    """

    op_class: str
    point: tuple[float, ...]
    flops: float
    bytes_moved: float
    scale: float = 1.0


def works_of(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the pieces of ``call`` when its floating values are held in ``dtype``."""
    if call.op in op_classes.FREE_OPS:
        return ()
    builder = _BUILDERS.get(call.op)
    if builder is None or not call.outputs:
        return (_other(call, dtype),)
    try:
        return builder(call, dtype)
    except (IndexError, ValueError):
        # A rank that the op does not have, as with an unknown shape.
        return (_other(call, dtype),)


def bytes_of(call: OpCall, dtype: str) -> float:
    """Return the bytes that ``call`` reads and writes."""
    return float(sum(spec.bytes_as(dtype) for spec in call.inputs + call.outputs))


def gelu_parts(name: str, elements: int, dtype: str) -> tuple[Work, ...]:
    """Return the plain ops that stand for an activation without a kernel of its own."""
    return tuple(
        _elementwise(op_class, elements, dtype) for op_class in op_classes.CHAINS[name]
    )


def _other(call: OpCall, dtype: str) -> Work:
    elements = max((spec.elements for spec in call.outputs + call.inputs), default=1)
    return Work(call.op, (float(elements),), float(elements), bytes_of(call, dtype))


def _elementwise(op_class: str, elements: int, dtype: str, tensors: int = 2) -> Work:
    size = float(elements)
    return Work(op_class, (size,), size, size * tensors * DTYPE_BYTES[dtype])


def _dims(spec: TensorSpec, rank: int) -> Dims:
    dims = spec.dims
    if len(dims) != rank:
        raise ValueError(f"rank {len(dims)} where {rank} is needed")
    return dims


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value or "")


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(_text, value)) if isinstance(value, Iterable) else ()


def _integers(value: object) -> Dims:
    return tuple(map(int, value)) if isinstance(value, Sequence) else ()


# --- matrix products -----------------------------------------------------------------


def _matmul(call: OpCall, dtype: str) -> tuple[Work, ...]:
    left, right = _dims(call.inputs[0], 2), _dims(call.inputs[1], 2)
    m, k = left[::-1] if call.attrs.get("transpose_a") else left
    n = right[0] if call.attrs.get("transpose_b") else right[1]
    product = Work("matmul", (m, k, n), 2.0 * m * k * n, bytes_of(call, dtype))
    return (product, *_fused_epilogues(call, dtype))


def _batch_matmul(call: OpCall, dtype: str) -> tuple[Work, ...]:
    left, right = call.inputs[0].dims, call.inputs[1].dims
    m, k = left[-2:][::-1] if call.attrs.get("adj_x") else left[-2:]
    n = right[-2] if call.attrs.get("adj_y") else right[-1]
    batch = max(math.prod(left[:-2]), math.prod(right[:-2]))
    moved = bytes_of(call, dtype)
    if batch == 1:
        product = Work("matmul", (m, k, n), 2.0 * m * k * n, moved)
    else:
        point = (batch, m, k, n)
        product = Work("batch_matmul", point, 2.0 * math.prod(point), moved)
    return (product, *_fused_epilogues(call, dtype))


def _einsum(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Price a product of two as TensorFlow runs it: transposes and a batched matmul."""
    equation = _text(call.attrs.get("equation")).replace("...", "").replace(" ", "")
    sources, target = equation.split("->")
    if "," not in sources:
        return _by_elements("Transpose", call, dtype)
    left, right = sources.split(",")
    size = dict(zip(left, _dims(call.inputs[0], len(left)), strict=True))
    size.update(zip(right, _dims(call.inputs[1], len(right)), strict=True))

    def count(letters: Iterable[str]) -> int:
        return math.prod(size[letter] for letter in letters)

    shared = set(left) & set(right)
    batch = [letter for letter in left if letter in shared and letter in target]
    summed = [letter for letter in left if letter in shared and letter not in target]
    rows = [letter for letter in left if letter not in shared]
    columns = [letter for letter in right if letter not in shared]
    m, k, n, b = count(rows), count(summed), count(columns), count(batch)
    moved = bytes_of(call, dtype)
    flops = 2.0 * m * k * n * b
    if b == 1:
        product = Work("matmul", (m, k, n), flops, moved)
    else:
        product = Work("batch_matmul", (b, m, k, n), flops, moved)
    natural = (
        (left, (batch + rows + summed, batch + summed + rows)),
        (right, (batch + columns + summed, batch + summed + columns)),
        (target, (batch + rows + columns, batch + columns + rows)),
    )
    moves = tuple(
        _elementwise("Transpose", count(letters), dtype)
        for letters, orders in natural
        if list(letters) not in orders
    )
    return (product, *moves)


# --- convolutions --------------------------------------------------------------------


def _channel_axis(call: OpCall) -> int:
    layout = _text(call.attrs.get("data_format")) or "NHWC"
    return 1 if layout.startswith("NC") else -1


def _stride(call: OpCall) -> int:
    return max(_integers(call.attrs.get("strides")), default=1)


def _measured_kernel(
    area: int, stride: int, kernels: dict[int, Dims]
) -> tuple[int, int]:
    nearest = max((known for known in kernels if known <= area), default=min(kernels))
    strides = kernels[nearest]
    return nearest, max((s for s in strides if s <= stride), default=min(strides))


def _convolution_tensors(
    call: OpCall, direction: str
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return the specs of image, filter and result, whichever of them is computed."""
    output = call.outputs[0]
    if direction == "forward":
        return call.inputs[0], call.inputs[1], output
    if direction == "input_gradient":
        return output, call.inputs[1], call.inputs[2]
    return call.inputs[0], output, call.inputs[2]


def _convolution(call: OpCall, dtype: str) -> tuple[Work, ...]:
    direction = op_classes.CONVOLUTIONS[call.op]
    _, kernel, result = _convolution_tensors(call, direction)
    *window, channels, filters = kernel.dims
    pixels = result.elements // max(filters, 1)
    area = math.prod(window)
    nearest, stride = _measured_kernel(area, _stride(call), op_classes.CONV_KERNELS)
    product = Work(
        f"conv.{direction}.{nearest}.s{stride}",
        (pixels, channels, filters),
        2.0 * pixels * area * channels * filters,
        bytes_of(call, dtype),
        scale=area / nearest,
    )
    return (product, *_fused_epilogues(call, dtype))


def _depthwise(call: OpCall, dtype: str) -> tuple[Work, ...]:
    direction = op_classes.DEPTHWISE[call.op]
    _, kernel, result = _convolution_tensors(call, direction)
    height, width, channels, multiplier = _dims(kernel, 4)
    area = height * width
    nearest, stride = _measured_kernel(
        area, _stride(call), op_classes.DEPTHWISE_KERNELS
    )
    filters = channels * multiplier
    product = Work(
        f"depthwise.{direction}.{nearest}.s{stride}",
        (result.elements // max(filters, 1), filters),
        2.0 * result.elements * area,
        bytes_of(call, dtype),
        scale=area / nearest,
    )
    return (product, *_fused_epilogues(call, dtype))


# --- what follows a product in a fused op --------------------------------------------


def _fused_epilogues(call: OpCall, dtype: str) -> tuple[Work, ...]:
    names = _texts(call.attrs.get("fused_ops"))
    if not names:
        return ()
    output = call.outputs[0]
    if call.op in SPLIT_IN_BFLOAT16 and dtype == "bfloat16":
        return tuple(
            work for name in names for work in _alone(name, call, output, dtype)
        )
    return tuple(
        replace(_elementwise(f"fused.{name}", output.elements, dtype), bytes_moved=0.0)
        for name in names
    )


def _alone(name: str, call: OpCall, output: TensorSpec, dtype: str) -> tuple[Work, ...]:
    op_class = op_classes.EPILOGUES.get(name, name)
    if op_class in op_classes.CHAINS:
        return gelu_parts(op_class, output.elements, dtype)
    if op_classes.axes_of(op_class) == op_classes.ROWS:
        channels = output.dims[_channel_axis(call)]
        return (_by_rows(op_class, output.elements, channels, dtype),)
    tensors = 3 if name == "Add" else 2
    return (_elementwise(op_class, output.elements, dtype, tensors),)


# --- elementwise ops, reductions, movement -------------------------------------------


def _by_elements(op_class: str, call: OpCall, dtype: str) -> tuple[Work, ...]:
    elements = float(max(spec.elements for spec in call.outputs))
    return (Work(op_class, (elements,), elements, bytes_of(call, dtype)),)


def _movement(call: OpCall, dtype: str) -> tuple[Work, ...]:
    elements = float(sum(spec.elements for spec in call.outputs))
    op_class = op_classes.MOVEMENT[call.op]
    return (Work(op_class, (elements,), 0.0, bytes_of(call, dtype)),)


def _plain_elementwise(call: OpCall, dtype: str) -> tuple[Work, ...]:
    op_class = op_classes.ELEMENTWISE[call.op]
    if op_class in op_classes.BROADCAST_CLASSES and len(call.inputs) == 2:
        op_class += _broadcast_suffix(*call.inputs)
    return _by_elements(op_class, call, dtype)


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
    return (replace(_elementwise("AddV2", elements, dtype, 3), scale=float(extra)),)


def _reduction(call: OpCall, dtype: str) -> tuple[Work, ...]:
    source, target = call.inputs[0], call.outputs[0]
    kept = max(target.elements, 1)
    reduced = max(source.elements // kept, 1)
    # The axes are a value of the graph; the shapes tell which end they lie at.
    last_is_kept = target.dims[-1:] == source.dims[-1:] and kept > 1
    where = "outer" if last_is_kept and source.dims[-1:] != (1,) else "inner"
    op_class = f"{op_classes.REDUCTIONS[call.op]}.{where}"
    elements = float(source.elements)
    return (Work(op_class, (kept, reduced), elements, bytes_of(call, dtype)),)


def _by_rows(op_class: str, elements: int, columns: int, dtype: str) -> Work:
    rows = max(elements // max(columns, 1), 1)
    moved = 2.0 * elements * DTYPE_BYTES[dtype]
    return Work(op_class, (rows, columns), float(elements), moved)


def _rows(op_class: str) -> Callable[[OpCall, str], tuple[Work, ...]]:
    """Return a builder for an op whose seconds follow from rows and columns."""

    def build(call: OpCall, dtype: str) -> tuple[Work, ...]:
        spec = call.inputs[0]
        columns = spec.dims[_channel_axis(call)]
        work = _by_rows(op_class, spec.elements, columns, dtype)
        return (replace(work, bytes_moved=bytes_of(call, dtype)),)

    return build


def _batch_norm(call: OpCall, dtype: str) -> tuple[Work, ...]:
    op_class = op_classes.BATCH_NORMS[call.op]
    training = call.attrs.get("is_training", True)
    suffix = ".training" if training else ".inference"
    return _rows(op_class + suffix)(call, dtype)


def _gather(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Count rows read and written; the table they come from stays where it is."""
    output = call.outputs[0]
    width = output.dims[-1] if len(output.dims) > 1 else 1
    rows = output.elements // max(width, 1)
    moved = 2.0 * output.bytes_as(dtype)
    return (Work("gather", (rows, width), 0.0, moved),)


def _segment(call: OpCall, dtype: str) -> tuple[Work, ...]:
    spec = max(call.inputs[:3], key=lambda spec: spec.bytes_as(dtype))
    width = spec.dims[-1]
    rows = spec.elements // max(width, 1)
    return (Work("segment", (rows, width), spec.elements, bytes_of(call, dtype)),)


def _pool(call: OpCall, dtype: str) -> tuple[Work, ...]:
    window = math.prod(_integers(call.attrs.get("ksize"))) or 4
    small = min(
        (spec.elements for spec in call.inputs + call.outputs if len(spec.dims) == 4),
        default=call.outputs[0].elements,
    )
    op_class = f"pool.{op_classes.POOLS[call.op]}"
    return (Work(op_class, (small, window), small * window, bytes_of(call, dtype)),)


_BUILDERS: dict[str, Callable[[OpCall, str], tuple[Work, ...]]] = {
    **dict.fromkeys(op_classes.ELEMENTWISE, _plain_elementwise),
    **dict.fromkeys(op_classes.MOVEMENT, _movement),
    **dict.fromkeys(op_classes.REDUCTIONS, _reduction),
    **dict.fromkeys(op_classes.SOFTMAX, _rows("Softmax")),
    **dict.fromkeys(op_classes.CROSS_ENTROPY, _rows("cross_entropy")),
    **dict.fromkeys(op_classes.GATHER, _gather),
    **dict.fromkeys(op_classes.SEGMENT, _segment),
    **dict.fromkeys(op_classes.MATMULS, _matmul),
    **dict.fromkeys(op_classes.BATCH_MATMULS, _batch_matmul),
    **dict.fromkeys(op_classes.CONVOLUTIONS, _convolution),
    **dict.fromkeys(op_classes.DEPTHWISE, _depthwise),
    **dict.fromkeys(op_classes.BATCH_NORMS, _batch_norm),
    **dict.fromkeys(op_classes.POOLS, _pool),
    "Einsum": _einsum,
    "AddN": _add_n,
    "BiasAdd": _rows("BiasAdd"),
    "BiasAddGrad": _rows("BiasAddGrad"),
    "_MklLayerNorm": _rows("LayerNorm"),
}
