"""Matrix products, convolutions, and what a fused product does besides."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.costs.work import op_classes
from tf_amp.measuring.device_profile.cases import (
    Build,
    Case,
    Point,
    Shapes,
    Sizes,
    matrix_of,
    raw_op,
)

Axes = Mapping[str, Sequence[int]]

# Suffix of the class of a product, and which of its operands is transposed.
_LAYOUTS = {"": (False, False), ".ta": (True, False), ".tb": (False, True)}


def matmuls(sizes: Sizes) -> list[Case]:
    """Measure products by all three dimensions, in each layout."""
    axes = dict.fromkeys(op_classes.MATMUL_AXES, sizes.matrix)
    return _layouts("matmul", axes, "MatMul", ("transpose_a", "transpose_b"))


def batch_matmuls(sizes: Sizes) -> list[Case]:
    """Measure products of a batch of matrices, in each layout."""
    axes = {"batch": sizes.batch, **dict.fromkeys("mkn", sizes.batched_matrix)}
    return _layouts("batch_matmul", axes, "BatchMatMulV2", ("adj_x", "adj_y"))


def _layouts(op_class: str, axes: Axes, op: str, flags: Sequence[str]) -> list[Case]:
    return [
        Case(
            f"{op_class}{suffix}",
            axes,
            functools.partial(_operands, layout),
            raw_op(op, **dict(zip(flags, layout, strict=True))),
            flops=lambda point: 2.0 * math.prod(point),
        )
        for suffix, layout in _LAYOUTS.items()
    ]


def _operands(layout: tuple[bool, bool], point: Point) -> Shapes:
    *batch, m, k, n = point
    left = (k, m) if layout[0] else (m, k)
    right = (n, k) if layout[1] else (k, n)
    return (*batch, *left), (*batch, *right)


# Batch and side of the images that make up so many pixels of a convolution's result.
_IMAGES = {64: (1, 8), 256: (4, 8), 1024: (4, 16), 4096: (16, 16)}


def convolutions(sizes: Sizes) -> list[Case]:
    """Measure both gradients too, by pixels of the result and channels."""

    def axes(area: int) -> Axes:
        channels = ((3, 32), (16, 64)) if area >= 49 else (sizes.channels,) * 2
        return dict(zip(op_classes.CONV_AXES, (sizes.pixels, *channels), strict=True))

    kernels = op_classes.CONV_KERNELS
    return _by_kernels("conv", "Conv2D", kernels, axes, flops=2.0)


def depthwise(sizes: Sizes) -> list[Case]:
    """Measure depthwise convolutions and both gradients."""
    axes = {"pixels": sizes.pixels[:4], "channels": sizes.channels}
    op, kernels = "DepthwiseConv2dNative", op_classes.DEPTHWISE_KERNELS
    # Strided gradients are far slower in 16 bits than their flops tell.
    return _by_kernels("depthwise", op, kernels, lambda area: axes, flops=200.0)


def _by_kernels(
    op_class: str,
    op: str,
    kernels: Mapping[int, Sequence[int]],
    axes: Callable[[int], Axes],
    *,
    flops: float,
) -> list[Case]:
    """Measure an op and both gradients with kernels, by area and by strides."""

    def case(area: int, stride: int, direction: str) -> Case:
        return Case(
            f"{op_class}.{direction}.{area}.s{stride}",
            axes(area),
            lambda point: _two_of(_tensors(point, area, stride), direction),
            _convolution(op, direction, area, stride),
            flops=lambda point: flops * math.prod(point) * area,
        )

    return [
        case(area, stride, direction)
        for area, strides in kernels.items()
        for stride in strides
        for direction in op_classes.DIRECTIONS
    ]


def _tensors(point: Point, area: int, stride: int) -> Shapes:
    """Return shapes of image, kernel and result; a depthwise one has its channels."""
    pixels, channels, *others = point
    side = round(area**0.5)
    batch, small = _IMAGES.get(pixels, (pixels // 1024, 32))
    image = (batch, small * stride, small * stride, channels)
    kernel = (side, side, channels, *(others or [1]))
    return image, kernel, (batch, small, small, point[-1])


def _two_of(tensors: Shapes, direction: str) -> Shapes:
    image, kernel, result = tensors
    if direction == "forward":
        return image, kernel
    return (kernel, result) if direction == "input_gradient" else (image, result)


def _convolution(op: str, direction: str, area: int, stride: int) -> Build:
    """Return what makes a convolution, or one of its gradients, of two tensors."""
    keep: dict[str, Any] = {"strides": [1, stride, stride, 1], "padding": "SAME"}
    if direction == "forward":
        return raw_op(op, **keep)
    is_of_image = direction == "input_gradient"

    def sizes(point: Point) -> dict[str, Any]:
        image, kernel, _ = _tensors(point, area, stride)
        return {"input_sizes": image} if is_of_image else {"filter_sizes": kernel}

    kind = "Input" if is_of_image else "Filter"
    return raw_op(f"{op}Backprop{kind}", sizes, **keep)


# What is measured is a difference: few sizes, far apart.
_FUSED_ELEMENTS = (1 << 12, 1 << 14, 1 << 19, 1 << 21)
_FUSED = "Relu Relu6 Elu LeakyRelu Tanh Sigmoid GeluExact GeluApproximate".split()


def fused(sizes: Sizes) -> list[Case]:
    """Measure what a fused product takes longer than the plain one."""
    depth = 16
    few = tuple(size for size in sizes.elements if size in _FUSED_ELEMENTS)
    axes = {"elements": few or sizes.elements}

    def shapes(point: Point) -> Shapes:
        rows, columns = matrix_of(point)
        return (rows, depth), (depth, columns), (columns,)

    def product(*names: str) -> Build:
        return lambda *tensors, point: _fused_matmul(tensors, names)

    biased = product("BiasAdd")
    return [
        Case("fused.BiasAdd", axes, shapes, biased, minus=raw_op("MatMul")),
        *(
            Case(f"fused.{name}", axes, shapes, product("BiasAdd", name), minus=biased)
            for name in _FUSED
        ),
    ]


def _fused_matmul(tensors: Sequence[Any], names: Sequence[str]) -> Any:
    """Make the node that TensorFlow's remapper makes of a product and its neighbors."""
    dtype = tensors[0].dtype
    fused_ops = tf.compat.v1.AttrValue()
    fused_ops.list.s.extend(name.encode() for name in names)
    attrs = {
        "T": tf.compat.v1.AttrValue(type=dtype.as_datatype_enum),
        "num_args": tf.compat.v1.AttrValue(i=1),
        "fused_ops": fused_ops,
    }
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(
        "_FusedMatMul", list(tensors), [dtype], name="fused", attrs=attrs
    ).outputs[0]
