"""What a call has to do: its class, its place on that class' axes, flops and bytes.

Decides which measured class stands for an op, and splits fused ops into a product and
what follows it. Seconds are left to the profile and to the roofline.

Recurrent kernels are the products inside of them, step after step. A step multiplies
inputs `[batch, inputs]` and state `[batch, units]` by weights for all gates,
2 * batch * (inputs + units) * gates * units flops, and computes the gates of each unit.
The way back multiplies the gradient of the gates by the same weights, and what went
into them by that gradient: twice the flops. cuDNN multiplies the inputs of all steps at
once.

References: Appleyard et al., Optimizing Performance of Recurrent Neural Networks on
    GPUs, arXiv:1604.01946; tensorflow/core/kernels/rnn/lstm_ops.h and gru_ops.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from grappler_pass.costs import op_classes
from grappler_pass.costs.calls import (
    CACHED_BYTES,
    DTYPE_BYTES,
    Dims,
    OpCall,
    Product,
    TensorSpec,
    Work,
    by_elements,
    by_rows,
    bytes_of,
    channel_axis,
    dims_of,
    elementwise,
    integers,
    text,
    texts,
)
from grappler_pass.graph.op_table import (
    BATCHED_EPILOGUES,
    EINSUM_OPS,
    RECURRENT_OPS,
    SPLIT_IN_BFLOAT16,
    epilogue_of,
)

_HIDDEN = "ABCDEFGH"
# Which input is the filter, where it is not the second.
_FILTER_AT = {"FusedPadConv2D": 2, "FusedResizeAndPadConv2D": 3}


def matrix_product(
    m: int, k: int, n: int, moved: float, *, batch: int = 1, layout: str = ""
) -> Work:
    """Return the work of `batch` products of `[m, k]` and `[k, n]`.

    Args:
        m: rows of the left operand.
        k: what is summed over.
        n: columns of the right operand.
        moved: bytes read and written.
        batch: how many; one is a plain product.
        layout: suffix of the class that says which operand is transposed. Such an
            operand is slow in some kernels: oneDNN's float32 product of 16 rows with a
            transposed right operand takes six times as long as the plain one.
    """
    # How long the rows of the operands and of the result are in memory.
    row_lengths = (m if layout == ".ta" else k, k if layout == ".tb" else n, n)
    product = Product(batch, m, n, k, row_lengths)
    family = "matmul" if batch == 1 else "batch_matmul"
    point = (m, k, n) if batch == 1 else (batch, m, k, n)
    flops = 2.0 * math.prod(point)
    return Work(f"{family}{layout}", point, flops, moved, product=product)


def matmul(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the product and its epilogues; a batch of one is a plain product."""
    left, right = call.inputs[0].dims, call.inputs[1].dims
    flips_left = call.attrs.get("transpose_a") or call.attrs.get("adj_x")
    flips_right = call.attrs.get("transpose_b") or call.attrs.get("adj_y")
    m, k = left[-2:][::-1] if flips_left else left[-2:]
    n = right[-2 if flips_right else -1]
    batch = max(math.prod(left[:-2]), math.prod(right[:-2]))
    layout = ".tb" if flips_right else ".ta" if flips_left else ""
    moved = bytes_of(call, dtype)
    product = matrix_product(m, k, n, moved, batch=batch, layout=layout)
    return (product, *fused_epilogues(call, dtype))


def einsum(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Price a product of two as TensorFlow runs it: transposes and a batched matmul."""
    if len(call.inputs) != 2:
        return by_elements("Transpose", call, dtype)
    equation = text(call.attrs.get("equation")).replace(" ", "")
    ranks = [len(spec.dims) for spec in call.inputs]
    left, right, target = spelled_out(equation, ranks)
    size = dict(zip(left, dims_of(call.inputs[0], len(left)), strict=True))
    size.update(zip(right, dims_of(call.inputs[1], len(right)), strict=True))

    def count(letters: Iterable[str]) -> int:
        return math.prod(size[letter] for letter in letters)

    shared = set(left) & set(right)
    batch = [letter for letter in left if letter in shared and letter in target]
    summed = [letter for letter in left if letter in shared and letter not in target]
    rows = [letter for letter in left if letter not in shared]
    columns = [letter for letter in right if letter not in shared]
    m, k, n = count(rows), count(summed), count(columns)
    product = matrix_product(m, k, n, bytes_of(call, dtype), batch=count(batch))
    natural = (
        (left, (batch + rows + summed, batch + summed + rows)),
        (right, (batch + columns + summed, batch + summed + columns)),
        (target, (batch + rows + columns, batch + columns + rows)),
    )
    moves = tuple(
        elementwise("Transpose", count(letters), dtype)
        for letters, orders in natural
        if list(letters) not in orders
    )
    return (product, *moves)


def spelled_out(equation: str, ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the letters of operands and result, with capitals for "..."."""
    sources, target = equation.split("->")
    terms = sources.split(",")
    hidden: list[str] = []
    for term, rank in zip(terms, ranks, strict=True):
        # Counted from the last.
        count = rank - len(term.replace("...", ""))
        hidden.append(_HIDDEN[-count:] if "..." in term and count > 0 else "")
    # Not by the shape of the result, which may be unknown.
    hidden.append(max(hidden, key=len))
    return tuple(
        term.replace("...", letters)
        for term, letters in zip((*terms, target), hidden, strict=True)
    )


def xla_dot(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Price a product over one axis; an attribute that is not looked at names the axes.

    The sizes tell: of batch, m, k and n the operands hold all but n and m, the result
    all but k.
    """
    left, right, output = call.inputs[0], call.inputs[1], call.outputs[0]
    shared = len(left.dims) + len(right.dims) - len(output.dims) - 2
    batch = math.prod(output.dims[: max(shared, 0)])
    summed = left.elements * right.elements // max(output.elements * batch, 1)
    k = max(math.isqrt(summed), 1)
    m, n = (max(each.elements // (batch * k), 1) for each in (left, right))
    return (matrix_product(m, k, n, bytes_of(call, dtype), batch=batch),)


def xla_convolution(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Price a convolution with channels last, or first as in [filters, channels, ...].

    An attribute that is not looked at names the axes, and an input the strides.
    """
    specs = (*call.inputs[:2], *call.outputs)
    image, kernel, result = (dims_of(spec, len(specs[0].dims)) for spec in specs)
    if kernel[-1] != result[-1]:
        image, result = ((n, *window, c) for n, c, *window in (image, result))
        filters, channels, *area = kernel
        kernel = (*area, channels, filters)
    moved = [
        spec._replace(shape=dims)
        for spec, dims in zip(specs, (image, kernel, result), strict=True)
    ]
    stride = max(image[1] // max(result[1], 1), 1)
    return convolution(
        OpCall("Conv", {"strides": (stride,)}, tuple(moved[:2]), (moved[2],)), dtype
    )


def _measured(
    call: OpCall, area: int, kernels: Mapping[int, Dims]
) -> tuple[int, int, int]:
    """Return a convolution's stride, the measured area below its own and its stride."""
    stride = max(integers(call.attrs.get("strides")), default=1)
    nearest = max((known for known in kernels if known <= area), default=min(kernels))
    strides = kernels[nearest]
    measured = max((s for s in strides if s <= stride), default=min(strides))
    return stride, nearest, measured


def _convolution_tensors(
    call: OpCall, direction: str
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """Return the specs of image, filter and result, whichever of them is computed."""
    output = call.outputs[0]
    if direction == "forward":
        return call.inputs[0], call.inputs[_FILTER_AT.get(call.op, 1)], output
    if direction == "input_gradient":
        return output, call.inputs[1], call.inputs[2]
    return call.inputs[0], output, call.inputs[2]


def convolution(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return a convolution, or either of its gradients, and its epilogues.

    It is a product, one per group of channels, whose operands are not laid out.
    """
    direction = op_classes.CONVOLUTIONS[call.op]
    image, kernel, result = _convolution_tensors(call, direction)
    *window, channels, filters = kernel.dims
    pixels, area = result.elements // max(filters, 1), math.prod(window)
    stride, nearest, measured = _measured(call, area, op_classes.CONV_KERNELS)
    image_channels = image.dims[channel_axis(call)]
    groups = max(image_channels // max(channels, 1), 1)
    inner = filters // groups
    # Rows, columns and what is summed over.
    sizes = {
        "forward": (pixels, inner, channels * area),
        # Of a stride's many places in the image each meets part of the window.
        "input_gradient": (
            image.elements // max(image_channels, 1),
            channels,
            max(inner * area // stride ** len(window), inner),
        ),
        "filter_gradient": (channels * area, inner, pixels),
    }
    short_cut = window == [3, 3] and stride == 1 and groups == 1
    work = Work(
        f"conv.{direction}.{nearest}.s{measured}",
        (pixels, channels, filters),
        2.0 * pixels * area * channels * filters,
        bytes_of(call, dtype),
        scale=area / nearest,
        product=Product(
            groups, *sizes[direction], is_convolution=True, has_short_cut=short_cut
        ),
    )
    return (work, *fused_epilogues(call, dtype))


def depthwise(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return a depthwise convolution, or either of its gradients."""
    direction = op_classes.DEPTHWISE[call.op]
    _, kernel, result = _convolution_tensors(call, direction)
    height, width, channels, multiplier = dims_of(kernel, 4)
    area, filters = height * width, channels * multiplier
    _, nearest, measured = _measured(call, area, op_classes.DEPTHWISE_KERNELS)
    product = Work(
        f"depthwise.{direction}.{nearest}.s{measured}",
        (result.elements // max(filters, 1), filters),
        2.0 * result.elements * area,
        bytes_of(call, dtype),
        scale=area / nearest,
    )
    return (product, *fused_epilogues(call, dtype))


def fused_epilogues(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the work behind a fused op's product, or of the plain ops instead."""
    names = texts(call.attrs.get("fused_ops"))
    if not names:
        return ()
    output = call.outputs[0]
    if call.op not in SPLIT_IN_BFLOAT16 or dtype != "bfloat16":
        fused = (elementwise(f"fused.{n}", output.elements, dtype) for n in names)
        return tuple(work._replace(bytes_moved=0.0) for work in fused)
    works: list[Work] = []
    for name in names:
        epilogue = epilogue_of(name)
        for op_class in (epilogue.alone or epilogue.part).split():
            if op_classes.axes_of(op_class) == op_classes.ROWS:
                channels = output.dims[channel_axis(call)]
                works.append(by_rows(op_class, output.elements, channels, dtype))
            else:
                tensors = 3 if name == "Add" else 2
                works.append(elementwise(op_class, output.elements, dtype, tensors))
    return tuple(works)


def in_batches(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return a fused product's work by the kernel of batched products, if it can do it.

    That kernel adds a bias as well. What activates the result is an op of its own then,
    and is one that rounds nothing. In float32 the fused kernel is the faster one.
    """
    names = texts(call.attrs.get("fused_ops"))
    flips = call.attrs.get("transpose_a") or call.attrs.get("transpose_b")
    is_fit = call.op == "_FusedMatMul" and names in BATCHED_EPILOGUES and not flips
    if not is_fit or dtype == "float32":
        return ()
    product, *_ = works_of(call, dtype)
    elements = call.outputs[0].elements
    bias = elementwise(op_classes.BATCHED_BIAS, elements, dtype)
    alone = (elementwise(name, elements, dtype) for name in names[1:])
    return (product, bias._replace(bytes_moved=0.0), *alone)


# Mode of cuDNN, and TensorFlow's cells -> gates, of them sigmoids, and hyperbolic
# tangents of either gates or states.
_LSTM = (4, 3, 2)
_GRU = (3, 2, 1)
_MODES = {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": (1, 0, 1), "rnn_relu": (1, 0, 0)}

# Layouts of the products that are gradients.
_OF_DATA, _OF_WEIGHTS = ".tb", ".ta"


def _products(
    m: int, k: int, n: int, dtype: str, times: int = 1, *, layout: str = ""
) -> Work:
    """Return the work of so many products of `[m, k]` and `[k, n]`, one by one.

    With a layout it is that of their gradients: ".tb" of the left operands, ".ta" of
    the right ones.
    """
    m, k, n = {"": (m, k, n), _OF_DATA: (m, n, k), _OF_WEIGHTS: (k, m, n)}[layout]
    moved = float(m * k + k * n + m * n) * DTYPE_BYTES[dtype]
    work = matrix_product(m, k, n, moved, layout=layout)
    return work._replace(times=float(times))


def lstm(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return one step of an LSTM, or over `[time, batch, inputs]` all, or a gradient.

    Of the gradient of a single step the products are nodes of their own.
    """
    if call.op == "LSTMBlockCellGrad":
        gates = call.outputs[1].elements
        # All that is read and written, beside the gates: as much again.
        return (elementwise("TanhGrad", gates, dtype, tensors=4),)
    if call.op == "LSTMBlockCell":
        time, (batch, _), weights = 1, dims_of(call.inputs[0], 2), call.inputs[3]
    else:
        (time, batch, _), weights = dims_of(call.inputs[1], 3), call.inputs[4]
    inside, width = dims_of(weights, 2)
    layouts = (_OF_DATA, _OF_WEIGHTS) if "Grad" in call.op else ("",)
    products = (
        _products(batch, inside, width, dtype, time, layout=each) for each in layouts
    )
    return (*products, *_cells(_LSTM, batch * width // 4, dtype, time))


def gru_cell(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return one step of a GRU, or the gradients of its input and state."""
    batch, _ = dims_of(call.inputs[0], 2)
    weights = [dims_of(spec, 2) for spec in call.inputs[2:4]]
    layout = _OF_DATA if "Grad" in call.op else ""
    products = (_products(batch, k, n, dtype, layout=layout) for k, n in weights)
    return (*products, *_cells(_GRU, batch * weights[1][1], dtype))


def cudnn(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return cuDNN's layers over `[time, batch, inputs]`, or their gradients."""
    time, batch, inputs = dims_of(call.inputs[0], 3)
    if not call.attrs.get("time_major", True):
        time, batch = batch, time
    stacked, _, state = dims_of(call.inputs[1], 3)
    # An LSTM with a projection has more units than its state shows.
    units = max((state, *call.inputs[2].dims[2:]))
    kind = _MODES.get(text(call.attrs.get("rnn_mode")), _LSTM)
    directions = 2 if text(call.attrs.get("direction")) == "bidirectional" else 1
    deeper, width = stacked - directions, kind[0] * units
    # Rows, sums and columns of products, in each of how many steps and layers.
    products = (
        (time * batch, inputs, width, 1, directions),
        (time * batch, directions * state, width, 1, deeper),
        (batch, state, width, time, stacked),
    )
    works: list[Work] = []
    for m, k, n, steps, layers in products:
        own = [_products(m, k, n, dtype, steps)]
        if "Backprop" in call.op:
            # The gradient of the weights is one product for all steps.
            at_once = _products(m * steps, k, n, dtype, layout=_OF_WEIGHTS)
            own = [_products(m, k, n, dtype, steps, layout=_OF_DATA), at_once]
        if layers > 0:
            works += (work._replace(times=layers * work.times) for work in own)
    return (*works, *_cells(kind, batch * units, dtype, time * stacked))


def _cells(
    kind: tuple[int, int, int], units: int, dtype: str, steps: int = 1
) -> tuple[Work, ...]:
    """Return the activations, which are computed where their product lies."""
    _, sigmoids, tanhs = kind
    counts = {"fused.Sigmoid": sigmoids, "fused.Tanh": tanhs}
    works = (elementwise(of, n * units, dtype) for of, n in counts.items() if n)
    return tuple(w._replace(bytes_moved=0.0, times=float(steps)) for w in works)


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
        small, large = sorted(call.inputs, key=lambda spec: spec.elements)
        if small.elements == 1 < large.elements:
            op_class += ".scalar"
        elif small.elements < large.elements:
            op_class += ".column" if small.dims[-1:] == (1,) else ".row"
    return by_elements(op_class, call, dtype)


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
    table, indices = call.inputs[:2]
    # Rows of any rank lie together.
    row = output.dims[len(indices.dims) :]
    if table.dtype == "resource" or table.dims[1:] == row:
        width = math.prod(row)
    else:
        width = output.dims[-1] if len(output.dims) > 1 else 1
    rows = output.elements // max(width, 1)
    moved = 2.0 * output.bytes_as(dtype)
    op_class = "gather" + _coldness(table, width)
    return (Work(op_class, (rows, width), 0.0, moved),)


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
    **dict.fromkeys(op_classes.MATMULS | op_classes.BATCH_MATMULS, matmul),
    **dict.fromkeys(op_classes.CONVOLUTIONS, convolution),
    **dict.fromkeys(op_classes.DEPTHWISE, depthwise),
    **dict.fromkeys(op_classes.BATCH_NORMS, _batch_norm),
    **dict.fromkeys(op_classes.POOLS, _pool),
    **dict.fromkeys(EINSUM_OPS, einsum),
    "XlaDot": xla_dot,
    "XlaConv": xla_convolution,
    **dict.fromkeys((op for op in RECURRENT_OPS if "BlockLSTM" in op), lstm),
    **dict.fromkeys((op for op in RECURRENT_OPS if "CudnnRNN" in op), cudnn),
    **dict.fromkeys(("GRUBlockCell", "GRUBlockCellGrad"), gru_cell),
    **dict.fromkeys(("LSTMBlockCell", "LSTMBlockCellGrad"), lstm),
    **dict.fromkeys(op_classes.UPDATES, _update),
    "AddN": _add_n,
    "BiasAdd": partial(_rows, "BiasAdd"),
    "BiasAddGrad": partial(_rows, "BiasAddGrad"),
    "_MklLayerNorm": partial(_rows, "LayerNorm"),
}
