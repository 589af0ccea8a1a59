"""Split a fused op into its parts where the fused one has no 16-bit kernel.

TensorFlow's remapper runs before plugins and makes `_FusedConv2D`, whose OpDef does not
admit bfloat16, of convolutions that do. The parts run in 16 bits; the last one keeps
the fused node's name, so nothing that reads it changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_HALF, DT_INT32

from grappler_pass.annotations import mark
from grappler_pass.eligibility.kernels import Role, role_of
from grappler_pass.eligibility.known_wrong import (
    BY_REFERENCE_IF_FUSED,
    ends_in_channels,
    has_kernel,
    is_imprecise,
)
from grappler_pass.graph.editing import data_of, name_in, new_node
from grappler_pass.graph.op_table import ROOTS, epilogue_of, fused_parts
from grappler_pass.graph.shapes import Shape
from grappler_pass.graph.type_slots import FLOAT32, admits, op_def_of
from grappler_pass.graph.view import Graph

# What of the nodes that give a product its shape are run each time.
RESHAPING_NODES = 4


class FusedPart(NamedTuple):
    """One op a fused node is made of, and which of the node's inputs are its own."""

    op: str
    inputs: tuple[int, ...]


def parts_of(proto: NodeDef) -> tuple[FusedPart, ...]:
    """Return the parts of a fused node in execution order; empty if not splittable.

    The first part reads the node's first two inputs; each later one reads the part
    before it and then its own.
    """
    root = ROOTS.get(proto.op)
    if root is None or "fused_ops" not in proto.attr:
        return ()
    parts = [FusedPart(root, (0, 1))]
    for name, own in fused_parts(proto):
        parts.append(FusedPart(epilogue_of(name).part, tuple(own)))
    is_known = all(part.op for part in parts)
    read = sum(len(part.inputs) for part in parts)
    is_whole = read == len(data_of(proto.input))
    return tuple(parts) if is_known and is_whole else ()


def products_alone(view: Graph, low_dtype: int) -> frozenset[int]:
    """Return the fused products whose kernel is slow where it holds more than these.

    What is fused behind one stays float32: TensorFlow would fuse it again.
    """
    if low_dtype != DT_HALF:
        return frozenset()
    return frozenset(
        node.index
        for node in view.nodes
        if node.op in BY_REFERENCE_IF_FUSED
        and node.device_type == "CPU"
        and parts_of(node.proto)
    )


def needs_split(proto: NodeDef, low_dtype: int, device_type: str) -> bool:
    """Say whether a fused node has parts, but no kernel of its own in `low_dtype`."""
    has_parts = bool(parts_of(proto))
    return has_parts and not _runs(proto.op, proto, low_dtype, device_type)


def can_split(
    proto: NodeDef, low_dtype: int, device_type: str, *, product_alone: bool = False
) -> bool:
    """Return whether all parts of a fused node, or its first, have sound kernels."""
    parts = parts_of(proto)[: 1 if product_alone else None]
    return bool(parts) and all(
        _runs(part.op, proto, low_dtype, device_type)
        and not is_imprecise(part.op, device_type)
        for part in parts
    )


def _runs(op: str, proto: NodeDef, low_dtype: int, device_type: str) -> bool:
    """Return whether an op has a kernel in 16 bits, with a node's attributes."""
    types = (("T", low_dtype),)
    return admits(op, "T", low_dtype) and has_kernel(op, proto, types, device_type)


def split_fused(
    proto: NodeDef,
    low_dtype: int,
    unused: Callable[[str], str],
    *,
    device_type: str,
    has_flat_bias: bool,
    product_alone: bool = False,
    shape: Shape | None = None,
) -> Sequence[NodeDef]:
    """Return the parts of a retyped fused node, or the node alone if it can stay.

    Before   conv(fused: BiasAdd, Relu)
    After    conv/tf_amp_Conv2D --> conv/tf_amp_BiasAdd --> conv

    Args:
      proto: a node whose low slots are already retyped.
      low_dtype: DataType of the low side.
      unused: makes a node name unique.
      device_type: that the node runs on; "" splits it whatever runs there.
      has_flat_bias: whether a bias surely has one dimension, as `BiasAdd` demands. The
        fused op also takes one of shape [1, 1, 1, channels].
      product_alone: whether what is fused behind stays float32, with a cast between.
      shape: of the product, if it may have another when it runs: its `lost_shape`.
    """
    can_stay = device_type and not needs_split(proto, low_dtype, device_type)
    if can_stay and not product_alone:
        return (proto,)
    parts = parts_of(proto)
    controls = [text for text in proto.input if text.startswith("^")]
    made: list[NodeDef] = []
    for part in parts:
        adds = part.op == "BiasAdd" and not has_flat_bias and ends_in_channels(proto)
        dtype = FLOAT32 if made and product_alone else low_dtype
        node = part_node(proto, "AddV2" if adds else part.op, dtype)
        is_last = part is parts[-1]
        wanted = f"{proto.name}/tf_amp_{part.op}"
        node.name = proto.name if is_last else unused(wanted)
        if made:
            node.input.append(made[-1].name)
        node.input.extend(proto.input[i] for i in part.inputs)
        if not made:
            node.input.extend(controls)
        made.append(node)
        if product_alone and part is parts[0]:
            name = unused(f"{wanted}/tf_amp_cast_float32")
            cast = cast_node(name, node.name, (low_dtype, FLOAT32), node)
            made.append(cast)
            if shape is not None:
                made.extend(_reshaped(cast, shape, unused))
    return made


def in_batches(
    proto: NodeDef, depth: int, columns: int, unused: Callable[[str], str]
) -> Sequence[NodeDef]:
    """Return the nodes by which a retyped fused product runs as a batched one.

    Before   _FusedMatMul(x, w, b), with an activation
    After    product = _MklFusedBatchMatMulV2(Reshape(x), Reshape(w), 1, Reshape(b));
             Reshape(activation(product))

    oneDNN has several kernels of products. That of batches adds a bias in float32 and
    rounds once, as the fused one does. It may be asked to if it multiplies by a scalar.

    Args:
      proto: in one of `BATCHED_EPILOGUES`, with no operand transposed.
      depth: what is summed over.
      columns: of the result.
      unused: makes a node name unique.
    """
    dtype, made = proto.attr["T"].type, list[NodeDef]()
    x, weights, bias = data_of(proto.input)

    def add(op: str, what: str, inputs: Sequence[str], **attrs: Any) -> str:
        name = unused(f"{proto.name}/tf_amp_{what}") if what else proto.name
        made.append(new_node(op, name, inputs, proto.device, **attrs))
        mark(made[-1], proto)
        return name

    def constant(what: str, value: Any, dtype: int) -> str:
        # It waits for an operand, and so is in its loop.
        tensor = tf.make_tensor_proto(value, dtype)
        return add("Const", what, [f"^{name_in(x)}"], dtype=dtype, value=tensor)

    def shaped(what: str, text: str, *sizes: int) -> str:
        size = constant(f"{what}_shape" if what else "shape", sizes, DT_INT32)
        return add("Reshape", what, [text, size], T=dtype, Tshape=DT_INT32)

    operands = [
        shaped("rows", x, 1, 1, -1, depth),
        # As many axes: oneDNN's broadcasting is wrong in places.
        shaped("weights", weights, 1, 1, depth, columns),
        constant("one", 1.0, dtype),
        shaped("bias", bias, 1, 1, 1, columns),
        *(text for text in proto.input if text.startswith("^")),
    ]
    types = {"T": dtype, "adj_x": False, "adj_y": False}
    fused = {"num_args": 2, "fused_ops": [b"Mul", b"Add"]}
    result = add("_MklFusedBatchMatMulV2", "product", operands, **types, **fused)
    for activation, _ in itertools.islice(fused_parts(proto), 1, None):
        result = add(activation, activation, [result], T=dtype)
    shaped("", result, -1, columns)
    return made


def lost_shape(proto: NodeDef, device_type: str, shape: Shape | None) -> Shape | None:
    """Return the shape of a product that it may not have when it runs; else None.

    Of no images oneDNN's convolutions make a result of these images' shape, in every
    type. A fused one adds its bias to that; a bias of its own refuses it.
    """
    is_convolution = role_of(ROOTS.get(proto.op, proto.op)) is Role.FORWARD
    if not is_convolution or device_type != "CPU" or shape is None:
        return None
    channels = shape[-1] if ends_in_channels(proto) else shape[1]
    return shape if None in shape and channels is not None else None


def _reshaped(
    source: NodeDef, shape: Shape, unused: Callable[[str], str]
) -> Sequence[NodeDef]:
    """Return nodes that give a tensor the sizes that are known of it.

    Before   conv([?, 4, 4, 3]), of 8 channels --> [?, 4, 4, 8], or [0, 4, 4, 3]
    After    Reshape(conv, Shape(conv) * [1, 0, 0, 0] + [0, 4, 4, 8])

    Of constants alone, such as [-1, 4, 4, 8], TensorFlow takes the Reshape out again.
    """

    def made(op: str, inputs: Sequence[str], **types: int) -> NodeDef:
        name = unused(f"{source.name}/tf_amp_{op}")
        node = new_node(op, name, inputs, source.device, **types)
        mark(node, source)
        return node

    def constant(values: Sequence[int]) -> NodeDef:
        # It waits for the tensor, and so is in its loop.
        node = made("Const", [f"^{source.name}"], dtype=DT_INT32)
        value = tf.make_tensor_proto(np.array(values, np.int32))
        node.attr["value"].tensor.CopyFrom(value)
        return node

    sizes = made("Shape", [source.name], T=FLOAT32, out_type=DT_INT32)
    open_sizes = constant([int(size is None) for size in shape])
    known_sizes = constant([size or 0 for size in shape])
    masked = made("Mul", [sizes.name, open_sizes.name], T=DT_INT32)
    right = made("AddV2", [masked.name, known_sizes.name], T=DT_INT32)
    result = made("Reshape", [source.name, right.name], T=FLOAT32, Tshape=DT_INT32)
    return (sizes, open_sizes, known_sizes, masked, right, result)


def cast_node(name: str, source: str, types: tuple[int, int], near: NodeDef) -> NodeDef:
    """Return a cast of an input from a type to another, on the device of a node."""
    given, wanted = types
    attrs = {"SrcT": given, "DstT": wanted, "Truncate": False}
    cast = new_node("Cast", name, [source], near.device, **attrs)
    mark(cast, near)
    return cast


def part_node(proto: NodeDef, op: str, dtype: int) -> NodeDef:
    """Return a node of `op` with a fused node's device and what attributes fit."""
    node = NodeDef(op=op, device=proto.device)
    op_def = op_def_of(op)
    assert op_def is not None
    for attr in op_def.attr:
        if attr.name in proto.attr:
            node.attr[attr.name].CopyFrom(proto.attr[attr.name])
    for name in proto.attr:
        if name.startswith("_"):
            node.attr[name].CopyFrom(proto.attr[name])
    if op == "LeakyRelu" and "leakyrelu_alpha" in proto.attr:
        node.attr["alpha"].f = proto.attr["leakyrelu_alpha"].f
    if op == "BiasAdd" and "data_format" in node.attr:
        # `BiasAdd` has two names for all ranks.
        node.attr["data_format"].s = b"NHWC" if ends_in_channels(node) else b"NCHW"
    node.attr["T"].type = dtype
    return node
