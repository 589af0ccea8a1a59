"""Matrix products, convolutions, and what a fused product does besides."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
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
)

# Shapes of image, kernel and result.
Tensors = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

# What computes the result, the gradient of the image, and that of the kernel.
_CONVOLUTIONS = (
    tf.raw_ops.Conv2D,
    tf.raw_ops.Conv2DBackpropInput,
    tf.raw_ops.Conv2DBackpropFilter,
)
_DEPTHWISE = (
    tf.raw_ops.DepthwiseConv2dNative,
    tf.raw_ops.DepthwiseConv2dNativeBackpropInput,
    tf.raw_ops.DepthwiseConv2dNativeBackpropFilter,
)

# Suffix of the class of a product, and which of its operands is transposed.
_LAYOUTS = {"": (False, False), ".ta": (True, False), ".tb": (False, True)}


def matmuls(sizes: Sizes) -> list[Case]:
    """Measure products by all three dimensions, in each layout."""
    return [
        Case(
            f"matmul{suffix}",
            dict.fromkeys(op_classes.MATMUL_AXES, sizes.matrix),
            functools.partial(_operands, layout),
            functools.partial(_product, layout),
            flops=lambda point: 2.0 * math.prod(point),
        )
        for suffix, layout in _LAYOUTS.items()
    ]


def batch_matmuls(sizes: Sizes) -> list[Case]:
    """Measure products of a batch of matrices, in each layout."""
    return [
        Case(
            f"batch_matmul{suffix}",
            {"batch": sizes.batch, **dict.fromkeys("mkn", sizes.batched_matrix)},
            functools.partial(_operands, layout),
            functools.partial(_batched_product, layout),
            flops=lambda point: 2.0 * math.prod(point),
        )
        for suffix, layout in _LAYOUTS.items()
    ]


def _operands(layout: tuple[bool, bool], point: Point) -> Shapes:
    *batch, m, k, n = point
    left = (k, m) if layout[0] else (m, k)
    right = (n, k) if layout[1] else (k, n)
    return (*batch, *left), (*batch, *right)


def _product(layout: tuple[bool, bool], left: Any, right: Any, point: Point) -> Any:
    return tf.raw_ops.MatMul(
        a=left, b=right, transpose_a=layout[0], transpose_b=layout[1]
    )


def _batched_product(
    layout: tuple[bool, bool], left: Any, right: Any, point: Point
) -> Any:
    return tf.raw_ops.BatchMatMulV2(x=left, y=right, adj_x=layout[0], adj_y=layout[1])


# Image and batch that make up so many pixels of a convolution's result.
_IMAGES = {64: (1, 8), 256: (4, 8), 1024: (4, 16), 4096: (16, 16)}


def _image(pixels: int, stride: int) -> tuple[int, int]:
    """Return batch and side of a square image whose result has ``pixels`` pixels."""
    batch, side = _IMAGES.get(pixels, (pixels // 1024, 32))
    return batch, side * stride


def convolutions(sizes: Sizes) -> list[Case]:
    """Measure both gradients too, by pixels of the result and channels."""
    return [
        _convolution(direction, area, stride, sizes)
        for area, strides in op_classes.CONV_KERNELS.items()
        for stride in strides
        for direction in op_classes.DIRECTIONS
    ]


def _convolution(direction: str, area: int, stride: int, sizes: Sizes) -> Case:
    side = round(area**0.5)
    inner = sizes.channels if area < 49 else (3, 32)
    outer = sizes.channels if area < 49 else (16, 64)

    def tensors(point: Point) -> Tensors:
        pixels, into, out = point
        return _tensors(pixels, stride, (side, side, into, out), out)

    return Case(
        f"conv.{direction}.{area}.s{stride}",
        dict(zip(op_classes.CONV_AXES, (sizes.pixels, inner, outer), strict=True)),
        lambda point: _two_of(tensors(point), direction),
        _built(_CONVOLUTIONS, direction, stride, tensors),
        flops=lambda point: 2.0 * math.prod(point) * area,
    )


def depthwise(sizes: Sizes) -> list[Case]:
    """Measure depthwise convolutions and both gradients."""
    return [
        _depthwise_case(direction, area, stride, sizes)
        for area, strides in op_classes.DEPTHWISE_KERNELS.items()
        for stride in strides
        for direction in op_classes.DIRECTIONS
    ]


def _depthwise_case(direction: str, area: int, stride: int, sizes: Sizes) -> Case:
    side = round(area**0.5)

    def tensors(point: Point) -> Tensors:
        pixels, channels = point
        return _tensors(pixels, stride, (side, side, channels, 1), channels)

    return Case(
        f"depthwise.{direction}.{area}.s{stride}",
        {"pixels": sizes.pixels[:4], "channels": sizes.channels},
        lambda point: _two_of(tensors(point), direction),
        _built(_DEPTHWISE, direction, stride, tensors),
        # Strided gradients are far slower in 16 bits than their flops tell.
        flops=lambda point: 200.0 * math.prod(point) * area,
    )


def _tensors(
    pixels: int, stride: int, kernel: tuple[int, ...], channels: int
) -> Tensors:
    """Return shapes of image, kernel and result, which has so many channels."""
    batch, edge = _image(pixels, stride)
    small = edge // stride
    return (batch, edge, edge, kernel[2]), kernel, (batch, small, small, channels)


def _two_of(tensors: Tensors, direction: str) -> Shapes:
    image, kernel, result = tensors
    if direction == "forward":
        return image, kernel
    return (kernel, result) if direction == "input_gradient" else (image, result)


def _built(
    ops: tuple[Any, Any, Any],
    direction: str,
    stride: int,
    tensors: Callable[[Point], Tensors],
) -> Build:
    """Return what makes a convolution, or one of its gradients, of two tensors."""
    forward, input_gradient, filter_gradient = ops
    keep: dict[str, Any] = {"strides": [1, stride, stride, 1], "padding": "SAME"}

    def build(first: Any, second: Any, point: Point) -> Any:
        image, kernel, _ = tensors(point)
        if direction == "forward":
            return forward(input=first, filter=second, **keep)
        if direction == "input_gradient":
            return input_gradient(
                input_sizes=image, filter=first, out_backprop=second, **keep
            )
        return filter_gradient(
            input=first, filter_sizes=kernel, out_backprop=second, **keep
        )

    return build


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

    def product(names: Sequence[str]) -> Build:
        def build(left: Any, right: Any, bias: Any, point: Point) -> Any:
            return _fused_matmul(left, right, bias, names)

        return build

    def plain(left: Any, right: Any, bias: Any, point: Point) -> Any:
        return tf.raw_ops.MatMul(a=left, b=right)

    bias = Case("fused.BiasAdd", axes, shapes, product(["BiasAdd"]), minus=plain)
    return [
        bias,
        *(
            Case(
                f"fused.{name}",
                axes,
                shapes,
                product(["BiasAdd", name]),
                minus=product(["BiasAdd"]),
            )
            for name in _FUSED
        ),
    ]


def _fused_matmul(left: Any, right: Any, bias: Any, names: Sequence[str]) -> Any:
    """Make the node that TensorFlow's remapper makes of a product and its neighbors."""
    fused_ops = tf.compat.v1.AttrValue()
    fused_ops.list.s.extend(name.encode() for name in names)
    attrs = {
        "T": tf.compat.v1.AttrValue(type=left.dtype.as_datatype_enum),
        "num_args": tf.compat.v1.AttrValue(i=1),
        "fused_ops": fused_ops,
    }
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(
        "_FusedMatMul", [left, right, bias], [left.dtype], name="fused", attrs=attrs
    ).outputs[0]
