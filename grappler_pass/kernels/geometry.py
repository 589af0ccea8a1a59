"""What a convolution or a batched product computes, read off its node and shapes.

A size that the graph leaves open is None.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.shapes import Shape
from grappler_pass.kernels.kernel import Kernel, Operand

Size = int | None


class Role(enum.Enum):
    """Which of a convolution's three products an op computes, or what else."""

    FORWARD = "convolution"
    INPUT_GRADIENT = "convolution's input gradient"
    FILTER_GRADIENT = "convolution's filter gradient"
    BATCH_PRODUCT = "batched product"
    OTHER = "other"


# Op -> what it computes, and where its image, its window and its result are: numbers
# of inputs, or `_OUTPUT`.
_OUTPUT = -1
_CONVOLUTIONS = {
    "Conv2D": (Role.FORWARD, 0, 1, _OUTPUT),
    "Conv2DBackpropFilter": (Role.FILTER_GRADIENT, 0, _OUTPUT, 2),
    "Conv2DBackpropFilterV2": (Role.FILTER_GRADIENT, 0, 1, 2),
    "Conv2DBackpropInput": (Role.INPUT_GRADIENT, _OUTPUT, 1, 2),
    "Conv2DBackpropInputV2": (Role.INPUT_GRADIENT, 0, 1, 2),
    "Conv3D": (Role.FORWARD, 0, 1, _OUTPUT),
    "Conv3DBackpropFilterV2": (Role.FILTER_GRADIENT, 0, _OUTPUT, 2),
    "Conv3DBackpropInputV2": (Role.INPUT_GRADIENT, _OUTPUT, 1, 2),
    "DepthwiseConv2dNative": (Role.FORWARD, 0, 1, _OUTPUT),
    "DepthwiseConv2dNativeBackpropFilter": (Role.FILTER_GRADIENT, 0, _OUTPUT, 2),
    "DepthwiseConv2dNativeBackpropInput": (Role.INPUT_GRADIENT, _OUTPUT, 1, 2),
}
_BATCH_PRODUCTS = frozenset({"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"})


class Convolution(NamedTuple):
    """Sizes of a convolution, or of the one that a gradient belongs to.

    Attributes:
      role: which of its three products is computed.
      batch: images.
      image, window, result: sizes by axis of space, the width last.
      strides, dilations: by axis of space.
      padding: "SAME", "VALID" or "EXPLICIT".
      padded: by axis of space, zeros in front of the first value; None: not known.
      padded_behind: by axis of space, zeros behind the last one that are explicit.
      channels_in: of the image.
      channels_out: of the result.
      depth: channels of the image that one value of the result reads.
    """

    role: Role
    batch: Size
    image: tuple[Size, ...]
    window: tuple[Size, ...]
    result: tuple[Size, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: str
    padded: tuple[Size, ...]
    padded_behind: tuple[int, ...]
    channels_in: Size
    channels_out: Size
    depth: Size

    def has_blind_taps(self, axis: int) -> bool:
        """Return whether some place in the window may only ever see padding."""
        sizes = (self.image[axis], self.window[axis], self.result[axis])
        padded, stride = self.padded[axis], self.strides[axis]
        if padded is None or None in sizes:
            return self.padding != "VALID"
        image, window, result = (size or 0 for size in sizes)
        firsts = (tap * self.dilations[axis] - padded for tap in range(window))
        return any(
            not any(0 <= first + at * stride < image for at in range(result))
            for first in firsts
        )


class BatchProduct(NamedTuple):
    """Sizes of a batched product.

    Attributes:
      left, right: leading sizes of the operands; None where the rank is open.
      rows: of the result.
    """

    left: Shape | None
    right: Shape | None
    rows: Size


def role_of(op: str) -> Role:
    """Return what an op computes."""
    if op in _BATCH_PRODUCTS:
        return Role.BATCH_PRODUCT
    return _CONVOLUTIONS.get(op, (Role.OTHER,))[0]


def convolution_of(kernel: Kernel) -> Convolution:
    """Return the sizes of a kernel whose op is a convolution, or a gradient of one."""
    role, *places = _CONVOLUTIONS[kernel.op]
    attrs = kernel.proto.attr
    rank = 5 if "3D" in kernel.op else 4
    image, window, result = (_shape(kernel, place, rank) for place in places)
    layout = attrs["data_format"].s.decode() if "data_format" in attrs else "NHWC"
    channels = 1 if layout.startswith("NC") else rank - 1
    space = [axis for axis in range(1, rank) if axis != channels]
    strides = tuple(_at(kernel, "strides", axis) for axis in space)
    dilations = tuple(_at(kernel, "dilations", axis) for axis in space)
    is_depthwise = "Depthwise" in kernel.op
    sizes = tuple(image[axis] for axis in space)
    windows, results = window[: rank - 2], tuple(result[axis] for axis in space)
    padding = attrs["padding"].s.decode() if "padding" in attrs else "VALID"
    explicit = [_at(kernel, "explicit_paddings", 2 * axis, 0) for axis in space]
    return Convolution(
        role=role,
        batch=image[0],
        image=sizes,
        window=windows,
        result=results,
        strides=strides,
        dilations=dilations,
        padding=padding,
        padded=tuple(
            _padding(padding, explicit[i], sizes[i], windows[i], results[i], step)
            for i, step in enumerate(zip(strides, dilations, strict=True))
        ),
        padded_behind=tuple(
            _at(kernel, "explicit_paddings", 2 * axis + 1, 0) for axis in space
        ),
        channels_in=image[channels],
        channels_out=result[channels],
        depth=1 if is_depthwise else window[-2],
    )


def channels_last(kernel: Kernel) -> Kernel:
    """Return a kernel as it runs once its images read channels last."""
    attrs = kernel.proto.attr
    layout = attrs["data_format"].s if "data_format" in attrs else b""
    if kernel.op not in _CONVOLUTIONS or not layout.startswith(b"NC"):
        return kernel
    _, image, window, _ = _CONVOLUTIONS[kernel.op]
    rank = len(layout)
    order = [0, *range(2, rank), 1]

    def moved_shape(shape: Shape | None) -> Shape | None:
        has_axes = shape is not None and len(shape) == rank
        return tuple(shape[i] for i in order) if shape and has_axes else shape

    def moved(position: int, operand: Operand) -> Operand:
        if position == window or (operand.values and image != _OUTPUT):
            return operand
        values = operand.values and tuple(operand.values[i] for i in order)
        return operand._replace(shape=moved_shape(operand.shape), values=values)

    is_filter = window == _OUTPUT
    return dataclasses.replace(
        kernel,
        proto=_moved_attributes(kernel.proto, order),
        operands=tuple(moved(*each) for each in enumerate(kernel.operands)),
        results=kernel.results
        if is_filter
        else tuple(map(moved_shape, kernel.results)),
    )


def _moved_attributes(given: NodeDef, order: Sequence[int]) -> NodeDef:
    """Return a node whose attributes list axes in another order, channels last."""
    proto = NodeDef()
    proto.CopyFrom(given)
    layout = given.attr["data_format"].s
    proto.attr["data_format"].s = layout[:1] + layout[2:] + layout[1:2]
    for name in ("strides", "dilations", "explicit_paddings"):
        values = list(given.attr[name].list.i) if name in given.attr else []
        width = len(values) // len(order)
        moved = [values[width * axis + i] for axis in order for i in range(width)]
        if moved:
            proto.attr[name].list.i[:] = moved
    return proto


def batch_product_of(kernel: Kernel) -> BatchProduct:
    """Return the sizes of a kernel whose op is a batched product."""
    left, right = (operand.shape for operand in kernel.operands[:2])
    attrs = kernel.proto.attr
    transposes = "adj_x" in attrs and attrs["adj_x"].b
    rows = None if left is None else left[-1 if transposes else -2]
    return BatchProduct(
        left=None if left is None else left[:-2],
        right=None if right is None else right[:-2],
        rows=rows,
    )


def matrix_sizes(kernel: Kernel) -> Iterator[Size]:
    """Yield rows, columns and depth of a batched product's matrices."""
    for operand in kernel.operands[:2]:
        yield from (None, None) if operand.shape is None else operand.shape[-2:]


def _shape(kernel: Kernel, place: int, rank: int) -> tuple[Size, ...]:
    if place == _OUTPUT:
        shape = kernel.results[0]
    else:
        operand = kernel.operands[place]
        shape = operand.values or operand.shape
    fits = shape is not None and len(shape) == rank
    return tuple(shape) if shape is not None and fits else (None,) * rank


def _at(kernel: Kernel, name: str, place: int, default: int = 1) -> int:
    attrs = kernel.proto.attr
    values = attrs[name].list.i if name in attrs else ()
    return int(values[place]) if place < len(values) else default


def _padding(
    padding: str,
    explicit: int,
    image: Size,
    window: Size,
    result: Size,
    step: tuple[int, int],
) -> Size:
    """Return the zeros in front of an axis, as TensorFlow's `SAME` chooses them."""
    if padding != "SAME":
        return explicit if padding == "EXPLICIT" else 0
    if image is None or window is None or result is None:
        return None
    stride, dilation = step
    reach = (result - 1) * stride + (window - 1) * dilation + 1
    return max(reach - image, 0) // 2
