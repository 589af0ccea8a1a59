"""Run one kernel in float32 and in 16 bits, and hold the two against each other.

Integers in -2..2 and ones are exact in 16 bits, and so are their sums of products in
float32: each element may be off by one rounding of the result. Memory is filled with
NaN before, since some kernels leave parts of their result as they find it. What is
inexact on any data may have no slice along an axis with an error above a tenth of the
whole. Nothing is timed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.eligibility.fused_ops import cast_node, split_fused
from grappler_pass.eligibility.kernels import Kernel, is_exact
from grappler_pass.graph.shapes import proto_from_shape, static
from grappler_pass.graph.type_slots import FLOAT32, TypeSlot
from grappler_pass.rewriting.apply import retype
from tf_amp.run.graph_run import GraphRun, own_config

_FLOAT32, _LOW = "float32", "low"
Array = npt.NDArray[np.float32]

# Half the distance of neighboring numbers, as a share, and what is finite at most.
_ROUNDING = {types_pb2.DT_BFLOAT16: 2.0**-8, types_pb2.DT_HALF: 2.0**-11}
_LARGEST = {types_pb2.DT_BFLOAT16: 3.3e38, types_pb2.DT_HALF: 65504.0}
_SLACK = 1.01
# Of the square of the whole result's, the mean square error of a slice.
_MOST_ERROR = 0.01
# A prime, so that no axis has the same numbers all along.
_PATTERN = 65521
# What a kernel works with has other sizes than its result.
_DIRTY_BYTES = tuple(1 << power for power in range(9, 21))


class Draw(NamedTuple):
    """How a kernel came out on some data.

    Attributes:
      wrong: elements, or slices, that are off.
      total: of how many.
      error: norm of what the result is off by, as a share of the result's.
    """

    wrong: int
    total: int
    error: float


def bytes_of(kernel: Kernel) -> int:
    """Return the memory of running it, roughly: operands, results, the rest."""
    shapes = (*(each.shape for each in kernel.operands), *kernel.results)
    return sum(16 * math.prod(size or 1 for size in shape or ()) for shape in shapes)


def fault_in(kernel: Kernel) -> str:
    """Return the fault of a kernel all of whose sizes are known; "" if none.

    Raises:
      tf.errors.OpError: it cannot be run in float32 or in 16 bits.
      ValueError: TensorFlow cannot import it.
    """
    for draw in _draws(kernel):
        if draw.wrong:
            return f"{draw.wrong} of {draw.total} off, by {draw.error:.2g} of the norm"
    return ""


def _draws(kernel: Kernel) -> Iterator[Draw]:
    """Yield how a kernel comes out on integers, then on ones."""
    fed = [str(i) for i, each in enumerate(kernel.operands) if each.values is None]
    shapes = [static(kernel.operands[int(name)].shape) or () for name in fed]
    judge = _exactly if is_exact(kernel) else _by_slices
    device = f"/device:{kernel.device_type}:0"
    # The program's own configuration, Grappler on for the smallest graphs.
    config = own_config()
    config.graph_options.rewrite_options.min_graph_nodes = -1
    config.allow_soft_placement = False
    sizes = [math.prod(size or 1 for size in shape or ()) for shape in kernel.results]
    with GraphRun({"": _both(kernel)}, config=config) as run:
        float32, low = run.tensor(_FLOAT32), run.tensor(_LOW)
        with run.graph.as_default(), run.graph.device(device):
            result = tf.cast(low, tf.float32)
            dirt = tf.compat.v1.placeholder(low.dtype, [])
            count = tf.compat.v1.placeholder(tf.int32, [1])
            dirtied = tf.reduce_max(tf.fill(count, dirt))
        compute = run.callable([float32, result], [run.tensor(name) for name in fed])
        dirty = run.callable(dirtied, [count, dirt])
        for values in (_INTEGERS, _ONES):
            arrays = [np.resize(values, shape) for shape in shapes]
            for size in (*sizes, *(bytes_ // 2 for bytes_ in _DIRTY_BYTES)):
                dirty([size], math.nan)
            with np.errstate(all="ignore"):
                yield judge(kernel, *compute(*arrays))


_INTEGERS = np.random.default_rng(0).integers(-2, 3, _PATTERN).astype(np.float32)
_ONES = np.ones(_PATTERN, np.float32)


def _both(kernel: Kernel) -> GraphDef:
    """Return a graph that computes a kernel in float32 and as the pass makes it."""
    graph_def = GraphDef()
    device = f"/device:{kernel.device_type}:0"
    for position, operand in enumerate(kernel.operands):
        source = graph_def.node.add(name=str(position))
        source.attr["dtype"].type = operand.dtype
        if operand.values is None:
            source.op = "Placeholder"
            source.attr["shape"].shape.CopyFrom(proto_from_shape(operand.shape))
        else:
            source.op = "Const"
            values = np.array(operand.values, np.int32)
            source.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values))
    float32 = NodeDef()
    float32.CopyFrom(kernel.proto)
    float32.name, float32.device = _FLOAT32, device
    low = NodeDef()
    low.CopyFrom(float32)
    low.name = _LOW
    for position, operand in enumerate(kernel.operands):
        if operand.is_low:
            types = (FLOAT32, kernel.low_dtype)
            cast = cast_node(f"{_LOW}_{position}", str(position), types, float32)
            low.input[position] = cast.name
            graph_def.node.append(cast)
    retype(low, [TypeSlot(_LOW, *slot) for slot in kernel.low_slots], kernel.low_dtype)
    graph_def.node.append(float32)
    operands = kernel.operands
    graph_def.node.extend(
        split_fused(
            low,
            kernel.low_dtype,
            lambda name: name,
            device_type=kernel.device_type,
            has_flat_bias=len(operands) > 2 and len(operands[2].shape or ()) == 1,
            product_alone=kernel.product_alone,
        )
    )
    return graph_def


def _exactly(kernel: Kernel, float32: Array, low: Array) -> Draw:
    """Count the elements that are off by more than roundings."""
    attrs = kernel.proto.attr
    fused = attrs["fused_ops"].list.s if "fused_ops" in attrs else ()
    roundings = 1 if kernel.product_alone else 1 + len(fused)
    share = _SLACK * roundings * _ROUNDING[kernel.low_dtype]
    largest = _LARGEST[kernel.low_dtype]
    off, size = low - float32, np.abs(float32)
    is_wrong = ~(np.abs(off) <= share * size)
    if is_wrong.any():
        # What is too large for the type is infinite in it.
        is_wrong &= ~((np.abs(low) > largest) & (size * (1 + share) >= largest))
    return Draw(int(is_wrong.sum()), off.size, _ratio(off, float32))


def _by_slices(kernel: Kernel, float32: Array, low: Array) -> Draw:
    """Count the slices along any axis that are off by too much."""
    square = np.square(low - float32)
    most = _MOST_ERROR * np.square(float32).mean()
    axes = range(square.ndim)
    means = [square.mean(tuple(a for a in axes if a != axis)) for axis in axes]
    wrong = sum(int((~(each <= most)).sum()) for each in means)
    return Draw(wrong, sum(map(len, means)), _ratio(low - float32, float32))


def _ratio(off: Array, whole: Array) -> float:
    """Return the norm of an error as a share of the norm of the whole."""
    return float(np.linalg.norm(off) / np.linalg.norm(whole))
