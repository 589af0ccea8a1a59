"""Private variables: what they stand for, and how they are filled in."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.calls import DTYPE_BYTES

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

FILL = "tf_amp_fill"
VARIABLES = ("VarHandleOp", "VariableV2")

_SEED = (3, 14)
# Sums over more inputs than this are let grow: the weights need not be tinier.
_MOST_INPUTS = 4096
# What TensorFlow draws by itself; the rest is cast from float32.
_DRAWN = (tf.float32, tf.float64)


class Content(NamedTuple):
    """A private variable: what it holds stands for a variable or an input.

    Attributes:
      name: shared by all nodes that mean it.
      dtype: DataType enum.
      shape: all known; guesses where the program's is not.
      device: that it is held on; blank where TensorFlow is to choose.
      bound: integers are at least 0 and less than this.
      is_state: it stands for a variable of the program, not for data.
      is_reference: a variable of TensorFlow 1, which has no handle.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    device: str = ""
    bound: int = 1
    is_state: bool = False
    is_reference: bool = False

    @property
    def size_bytes(self) -> int:
        """Return what it takes in memory."""
        name = tf.dtypes.as_dtype(self.dtype).name
        return math.prod(self.shape) * DTYPE_BYTES.get(name, 8)


def filling_graph(
    contents: Iterable[Content], values: Values | None = None
) -> tuple[GraphDef, dict[str, Array]]:
    """Return a graph whose node `FILL` fills in all contents, and what to feed it with.

    Numbers made up are positive, so that roots and logarithms are defined, and small,
    so that sums of products stay of the size of their operands. Integers are spread
    over what their readers take as an index, and 0 where there is no such reader; truth
    values are true; strings are empty. What is alike is made once. Nothing is made up
    where values are given, of all contents by name.
    """
    made = functools.cache(_made_up)
    feeds: dict[str, Array] = {}
    filled = []
    with tf.Graph().as_default() as graph:
        for content in contents:
            dtype = tf.dtypes.as_dtype(content.dtype)
            if values is None:
                value = made(dtype, content.shape, *_range(content, dtype))
            else:
                value = tf.compat.v1.placeholder(dtype)
                given = values[content.name]
                feeds[value.op.name] = given.astype(dtype.as_numpy_dtype, copy=False)
                content = content._replace(shape=given.shape)
            filled.append(_assigned(content, value))
        with tf.control_dependencies(filled):
            tf.no_op(FILL)
    return graph.as_graph_def(), feeds


def _assigned(content: Content, value: tf.Tensor) -> tf.Operation:
    variable = {
        "dtype": content.dtype,
        "shape": content.shape,
        "shared_name": content.name,
    }
    raw = tf.raw_ops
    with tf.device(content.device):
        if content.is_reference:
            return raw.Assign(ref=raw.VariableV2(**variable), value=value).op
        handle = raw.VarHandleOp(**variable)
        return raw.AssignVariableOp(resource=handle, value=value)


def _made_up(
    dtype: tf.DType, shape: tuple[int, ...], least: float, most: float
) -> tf.Tensor:
    sizes = np.array(shape, np.int32)
    if least == most:
        value = np.array("" if dtype == tf.string else least, dtype.as_numpy_dtype)
        return tf.raw_ops.Fill(dims=sizes, value=value)
    drawn = dtype if dtype in _DRAWN else tf.float32
    seed = np.array(_SEED, np.int64)
    draw = tf.raw_ops.StatelessRandomUniform(shape=sizes, seed=seed, dtype=drawn)
    return tf.cast(draw * (most - least) + least, dtype)


def _range(content: Content, dtype: tf.DType) -> tuple[float, float]:
    """Return the least and the most of what is made up; equal where it is one value."""
    if dtype.is_floating:
        shape = content.shape
        is_weights = content.is_state and len(shape) > 1
        inputs = min(math.prod(shape[:-1]), _MOST_INPUTS) if is_weights else 1
        return 0.5 / max(inputs, 1), 1.5 / max(inputs, 1)
    if dtype.is_integer and content.bound > 1:
        return 0.0, float(min(content.bound, dtype.max))
    return (float(dtype.is_bool),) * 2


def describe(variable: NodeDef, content: Content) -> None:
    """Let a node that is a variable, or the handle of one, mean `content`."""
    variable.attr["dtype"].type = content.dtype
    variable.attr["shape"].shape.SetInParent()
    for size in content.shape:
        variable.attr["shape"].shape.dim.add(size=size)
    variable.attr["shared_name"].s = content.name.encode()
