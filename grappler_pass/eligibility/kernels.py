"""One op in 16 bits, with all that decides which code of TensorFlow computes it.

Of a convolution or a batched product also what it computes, read off its node and
shapes; a size that the graph leaves open is None.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.op_work import spelled_out
from grappler_pass.fork_safety import cached_attribute
from grappler_pass.graph.op_table import ROOTS, fused_parts
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, static
from grappler_pass.graph.type_slots import DTYPE_NAMES, FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import Graph, Node

# Stands for a batch whose size the graph leaves open.
OPEN_BATCH = 32
# How attributes begin that are no part of what a node computes.
_PRIVATE = "_"


class Operand(NamedTuple):
    """An input of a kernel.

    Attributes:
      dtype: in the float32 program, as a DataType enum.
      shape: None, or sizes that are None, where they are not known.
      values: of a small operand that says what to compute, such as sizes; flat.
      is_low: whether it is in 16 bits.
    """

    dtype: int
    shape: Shape | None
    values: tuple[int, ...] | None = None
    is_low: bool = False

    @property
    def is_known(self) -> bool:
        """Whether nothing that it takes to make one is left open."""
        if self.dtype == types_pb2.DT_INT32:
            return self.values is not None
        return self.shape is not None and None not in self.shape


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """One op in 16 bits.

    Attributes:
      proto: the node in float32; inputs are named by position.
      device_type: where it runs: "CPU" or "GPU".
      low_dtype: DataType enum.
      low_slots: its types that are in 16 bits: attributes, and positions in lists.
      operands: its data inputs.
      results: shapes of its outputs.
      product_alone: whether what is fused behind the product stays float32.
    """

    proto: NodeDef
    device_type: str
    low_dtype: int
    low_slots: tuple[tuple[str, int], ...]
    operands: tuple[Operand, ...]
    results: tuple[Shape | None, ...]
    product_alone: bool

    @property
    def op(self) -> str:
        """The op that the node begins with: of a fused one that of its product."""
        return ROOTS.get(self.proto.op, str(self.proto.op))

    @cached_attribute
    def key(self) -> str:
        """Everything that decides what runs on one machine, as JSON on one line."""
        attrs = {
            name: text_format.MessageToString(value, as_one_line=True).strip()
            for name, value in self.proto.attr.items()
        }
        fields = {
            "op": self.proto.op,
            "attrs": attrs,
            "type": types_pb2.DataType.Name(self.low_dtype),
            "low": [list(slot) for slot in self.low_slots],
            "operands": [[o.dtype, o.shape, o.values] for o in self.operands],
            "alone": self.product_alone,
        }
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @property
    def is_whole(self) -> bool:
        """Whether nothing that it takes to run is left open."""
        return all(operand.is_known for operand in self.operands) and all(
            shape is not None and None not in shape for shape in self.results
        )


def described(key: str) -> str:
    """Return a kernel's key as people read it: op, type and shapes.

    What is no key, of a file that was changed, is returned unchanged.
    """
    try:
        fields = json.loads(key)
        shapes = [o[2] if o[1] is None else o[1] for o in fields["operands"]]
        texts = " and ".join("x".join(map(str, shape)) for shape in shapes if shape)
        low_dtype = types_pb2.DataType.Value(fields["type"])
        return f"{fields['op']} in {DTYPE_NAMES[low_dtype]} of {texts}"
    except (ValueError, TypeError, LookupError, RecursionError):
        return key


class Kernels(Protocol):
    """What is known of the kernels of the devices that are planned for."""

    def fault(self, kernel: Kernel, *, compiled: bool) -> str:
        """Return why a kernel may not be used; "" where nothing is known against it.

        `compiled` says that XLA compiles the graph.
        """

    def check(self, kernels: list[Kernel]) -> bool:
        """Run those of which nothing is known; return whether any is wrong."""

    def unchecked(self, kernels: list[Kernel]) -> str:
        """Say of how many nothing is known; "" of none."""


def kernel_of(
    view: Graph, slots: SlotTable, shapes: Shapes, node: Node, low_dtype: int
) -> Kernel:
    """Return the kernel that computes a node once its float32 types are in 16 bits.

    A batch of unknown size counts as `OPEN_BATCH`.
    """
    alone = slots.has_float32_results(node.index)
    own = [s for s in slots.slots_of[node.index] if slots.dtypes[s] == FLOAT32]
    results = tuple(map(_with_batch, shapes.get(node.name, ()))) or (None,)
    # Without its name, its device and what only its graph knows.
    inputs = map(str, range(len(node.inputs)))
    plain = NodeDef(name="kernel", op=node.op, input=inputs)
    for name, value in node.proto.attr.items():
        if not name.startswith(_PRIVATE):
            plain.attr[name].CopyFrom(value)
    operands: list[Operand] = []
    for position, port in enumerate(node.inputs):
        dtype = slots.input_dtype(node.index, position)
        shape = known_shape(shapes, view, port)
        if dtype == types_pb2.DT_INT32:
            # Sizes; of a gradient they are those of its result.
            source, values = view.nodes[port.node].proto, None
            if source.op == "Const":
                flat = tf.make_ndarray(source.attr["value"].tensor).flat
                values = tuple(map(int, flat))
            elif "Backprop" in node.op:
                values = static(results[0])
            operands.append(Operand(dtype, shape, values))
        else:
            has_slot = slots.input_slot(node.index, position) != NO_SLOT
            is_low = dtype == FLOAT32 and has_slot
            operands.append(Operand(dtype, _with_batch(shape), None, is_low))
    return Kernel(
        proto=plain,
        device_type=node.device_type,
        low_dtype=low_dtype,
        low_slots=tuple(
            (slots.slots[s].attr, slots.slots[s].index)
            for s in (own[:1] if alone else own)
        ),
        operands=tuple(operands),
        results=results,
        product_alone=alone,
    )


def _with_batch(shape: Shape | None) -> Shape | None:
    return (OPEN_BATCH, *shape[1:]) if shape and shape[0] is None else shape


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
      explicit: by axis of space, explicit zeros in front of the values and behind them.
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
    explicit: tuple[tuple[int, int], ...]
    channels_in: Size
    channels_out: Size
    depth: Size

    def reach(self, axis: int) -> int:
        """Return how many values the window spans along an axis; 1 where not known."""
        return ((self.window[axis] or 1) - 1) * self.dilations[axis] + 1

    def padded(self, axis: int) -> Size:
        """Return the zeros in front of an axis, as TensorFlow's `SAME` chooses them."""
        if self.padding != "SAME":
            return self.explicit[axis][0] if self.padding == "EXPLICIT" else 0
        image, result = self.image[axis], self.result[axis]
        if image is None or result is None or self.window[axis] is None:
            return None
        span = (result - 1) * self.strides[axis] + self.reach(axis)
        return max(span - image, 0) // 2

    def has_blind_taps(self, axis: int) -> bool:
        """Return whether some place in the window may only ever see padding."""
        image, window, result = self.image[axis], self.window[axis], self.result[axis]
        padded, stride = self.padded(axis), self.strides[axis]
        if padded is None or image is None or window is None or result is None:
            return self.padding != "VALID"
        firsts = (tap * self.dilations[axis] - padded for tap in range(window))
        return any(
            not any(0 <= first + at * stride < image for at in range(result))
            for first in firsts
        )


class BatchProduct(NamedTuple):
    """Sizes of a batched product.

    Attributes:
      left, right: leading sizes of the operands; None where the rank is open.
      rows, columns: of the result.
      flips_right: whether the right operand's matrices are transposed.
    """

    left: Shape | None
    right: Shape | None
    rows: Size
    columns: Size
    flips_right: bool


def role_of(op: str) -> Role:
    """Return the product of a convolution that an op computes, or what else."""
    if op in _BATCH_PRODUCTS:
        return Role.BATCH_PRODUCT
    return _CONVOLUTIONS.get(op, (Role.OTHER,))[0]


def convolution_of(kernel: Kernel) -> Convolution:
    """Return the sizes of a kernel whose op is a convolution, or a gradient of one."""
    role, *places = _CONVOLUTIONS[kernel.op]
    attrs = kernel.proto.attr
    rank = 5 if "3D" in kernel.op else 4
    shapes = [operand.values or operand.shape for operand in kernel.operands]
    shapes.append(kernel.results[0])
    image, window, result = (
        shape if (shape := shapes[place]) and len(shape) == rank else (None,) * rank
        for place in places
    )
    layout = attrs["data_format"].s.decode() if "data_format" in attrs else "NHWC"
    channels = 1 if layout.startswith("NC") else rank - 1
    space = [axis for axis in range(1, rank) if axis != channels]
    is_depthwise = "Depthwise" in kernel.op
    return Convolution(
        role=role,
        batch=image[0],
        image=tuple(image[axis] for axis in space),
        window=window[: rank - 2],
        result=tuple(result[axis] for axis in space),
        strides=tuple(_at(kernel, "strides", axis) for axis in space),
        dilations=tuple(_at(kernel, "dilations", axis) for axis in space),
        padding=attrs["padding"].s.decode() if "padding" in attrs else "VALID",
        explicit=tuple(
            (
                _at(kernel, "explicit_paddings", 2 * axis, 0),
                _at(kernel, "explicit_paddings", 2 * axis + 1, 0),
            )
            for axis in space
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

    proto = NodeDef()
    proto.CopyFrom(kernel.proto)
    proto.attr["data_format"].s = layout[:1] + layout[2:] + layout[1:2]
    for name in ("strides", "dilations", "explicit_paddings"):
        values = list(attrs[name].list.i) if name in attrs else []
        width = len(values) // rank
        if values:
            proto.attr[name].list.i[:] = [
                values[width * axis + i] for axis in order for i in range(width)
            ]
    results = kernel.results
    return dataclasses.replace(
        kernel,
        proto=proto,
        operands=tuple(moved(*each) for each in enumerate(kernel.operands)),
        results=results if window == _OUTPUT else tuple(map(moved_shape, results)),
    )


def batch_product_of(kernel: Kernel) -> BatchProduct:
    """Return the sizes of a kernel whose op is a batched product."""
    left, right = (operand.shape for operand in kernel.operands[:2])
    attrs = kernel.proto.attr
    flips_left, flips_right = (n in attrs and attrs[n].b for n in ("adj_x", "adj_y"))
    return BatchProduct(
        left=None if left is None else left[:-2],
        right=None if right is None else right[:-2],
        rows=None if left is None else left[-1 if flips_left else -2],
        columns=None if right is None else right[-2 if flips_right else -1],
        flips_right=flips_right,
    )


def einsum_product_of(kernel: Kernel) -> BatchProduct | None:
    """Return the batched product that an Einsum of two known ranks makes, if any."""
    equation = kernel.proto.attr["equation"].s.decode().replace(" ", "")
    shapes = [operand.shape for operand in kernel.operands]
    if len(shapes) != 2 or None in shapes:
        return None
    ranks = [len(shape or ()) for shape in shapes]
    left, right, target = spelled_out(equation, ranks)
    # A guessed shape may have another rank.
    if [len(left), len(right)] != ranks:
        return None
    sizes = {
        letter: size
        for term, shape in zip((left, right), shapes, strict=True)
        for letter, size in zip(term, shape or (), strict=True)
    }

    def product(letters: Iterable[str]) -> Size:
        known = static(tuple(sizes[letter] for letter in letters))
        return None if known is None else math.prod(known)

    batch = tuple(sizes[letter] for letter in left if letter in {*right} & {*target})
    return BatchProduct(
        left=batch,
        right=batch,
        rows=product({*left} - {*right}),
        columns=product({*right} - {*left}),
        flips_right=right[-1:] in {*left} - {*target},
    )


def _at(kernel: Kernel, name: str, place: int, default: int = 1) -> int:
    attrs = kernel.proto.attr
    values = attrs[name].list.i if name in attrs else ()
    return int(values[place]) if place < len(values) else default


# What is fused behind a product and is no sum of products.
_CURVED = frozenset({"Elu", "GeluApproximate", "GeluExact", "Sigmoid", "Tanh"})


def needs_check(kernel: Kernel) -> bool:
    """Return whether a kernel is of a kind that was found wrong."""
    role = role_of(kernel.op)
    if role is Role.BATCH_PRODUCT:
        product = batch_product_of(kernel)
        # Rows, columns and depth of its matrices.
        shapes = [operand.shape for operand in kernel.operands[:2]]
        is_thin = any(s is None or {1, None} & {*s[-2:]} for s in shapes)
        left, right = product.left, product.right
        return is_thin or left is None or left != right or set(left) == {1}
    if kernel.op == "Einsum":
        spelled = einsum_product_of(kernel)
        return spelled is not None and set(spelled.left or ()) == {1}
    return role is not Role.OTHER or _is_recurrent(kernel)


def is_exact(kernel: Kernel) -> bool:
    """Return whether integers make it add up exactly: a sum of products on a CPU.

    On GPUs convolutions may be computed by transforms, which are inexact on any data.
    """
    if kernel.device_type != "CPU" or _is_recurrent(kernel):
        return False
    fused = () if kernel.product_alone else fused_parts(kernel.proto)
    return not any(name in _CURVED for name, _ in fused)


def _is_recurrent(kernel: Kernel) -> bool:
    # Those of CPUs are on the deny lists.
    return kernel.op.startswith("CudnnRNN")
