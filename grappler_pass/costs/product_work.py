"""Work of matrix products and convolutions, alone and fused with what follows them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from grappler_pass.costs import op_classes
from grappler_pass.costs.calls import (
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
from grappler_pass.graph.fusions import SPLIT_IN_BFLOAT16, epilogue_of

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


def _layout(call: OpCall, left: str, right: str) -> str:
    if call.attrs.get(right):
        return ".tb"
    return ".ta" if call.attrs.get(left) else ""


def matmul(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the product and its epilogues."""
    left, right = dims_of(call.inputs[0], 2), dims_of(call.inputs[1], 2)
    m, k = left[::-1] if call.attrs.get("transpose_a") else left
    n = right[0] if call.attrs.get("transpose_b") else right[1]
    layout = _layout(call, "transpose_a", "transpose_b")
    product = matrix_product(m, k, n, bytes_of(call, dtype), layout=layout)
    return (product, *fused_epilogues(call, dtype))


def batch_matmul(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the product of a batch; a batch of one is a plain product."""
    left, right = call.inputs[0].dims, call.inputs[1].dims
    m, k = left[-2:][::-1] if call.attrs.get("adj_x") else left[-2:]
    n = right[-2] if call.attrs.get("adj_y") else right[-1]
    batch = max(math.prod(left[:-2]), math.prod(right[:-2]))
    layout = _layout(call, "adj_x", "adj_y")
    moved = bytes_of(call, dtype)
    product = matrix_product(m, k, n, moved, batch=batch, layout=layout)
    return (product, *fused_epilogues(call, dtype))


def einsum(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Price a product of two as TensorFlow runs it: transposes and a batched matmul."""
    if len(call.inputs) != 2:
        return by_elements("Transpose", call, dtype)
    equation = text(call.attrs.get("equation")).replace(" ", "")
    left, right, target = _spelled_out(equation, call.inputs)
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


def _spelled_out(equation: str, inputs: Sequence[TensorSpec]) -> tuple[str, ...]:
    """Return the letters of operands and result, with capitals for "..."."""
    sources, target = equation.split("->")
    terms = sources.split(",")
    hidden: list[str] = []
    for term, spec in zip(terms, inputs, strict=True):
        # Counted from the last.
        count = len(spec.dims) - len(term.replace("...", ""))
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


def _stride(call: OpCall) -> int:
    return max(integers(call.attrs.get("strides")), default=1)


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
        return call.inputs[0], call.inputs[_FILTER_AT.get(call.op, 1)], output
    if direction == "input_gradient":
        return output, call.inputs[1], call.inputs[2]
    return call.inputs[0], output, call.inputs[2]


def convolution(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return a convolution, or either of its gradients, and its epilogues."""
    direction = op_classes.CONVOLUTIONS[call.op]
    image, kernel, result = _convolution_tensors(call, direction)
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
        product=_implicit_product(call, direction, image, kernel, pixels),
    )
    return (product, *fused_epilogues(call, dtype))


def _implicit_product(
    call: OpCall, direction: str, image: TensorSpec, kernel: TensorSpec, pixels: int
) -> Product:
    """Return the product that a convolution is, one per group of channels."""
    *window, channels, filters = kernel.dims
    area, stride = math.prod(window), _stride(call)
    image_channels = image.dims[channel_axis(call)]
    groups = max(image_channels // max(channels, 1), 1)
    inner = filters // groups
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
    short_cut = list(window) == [3, 3] and stride == 1 and groups == 1
    return Product(
        groups, *sizes[direction], is_convolution=True, has_short_cut=short_cut
    )


def depthwise(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return a depthwise convolution, or either of its gradients."""
    direction = op_classes.DEPTHWISE[call.op]
    _, kernel, result = _convolution_tensors(call, direction)
    height, width, channels, multiplier = dims_of(kernel, 4)
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
    return (product, *fused_epilogues(call, dtype))


def fused_epilogues(call: OpCall, dtype: str) -> tuple[Work, ...]:
    """Return the work behind a fused op's product, or of the plain ops instead."""
    names = texts(call.attrs.get("fused_ops"))
    if not names:
        return ()
    output = call.outputs[0]
    if call.op not in SPLIT_IN_BFLOAT16 or dtype != "bfloat16":
        return tuple(
            elementwise(f"fused.{name}", output.elements, dtype)._replace(
                bytes_moved=0.0
            )
            for name in names
        )
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
