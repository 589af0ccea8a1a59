"""Private variables: what they stand for, and how they are filled in."""

from __future__ import annotations

import math
import zlib
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
    contents: Iterable[Content], values: Values
) -> tuple[GraphDef, dict[str, Array]]:
    """Return a graph whose node `FILL` fills in all contents, and what to feed it with.

    Values are by name of the contents; others are made up.
    """
    feeds: dict[str, Array] = {}
    filled = []
    with tf.Graph().as_default() as graph:
        for content in contents:
            dtype = tf.dtypes.as_dtype(content.dtype)
            given = values.get(content.name)
            given = made_up(content) if given is None else given
            value = tf.compat.v1.placeholder(dtype)
            feeds[value.op.name] = given.astype(dtype.as_numpy_dtype, copy=False)
            filled.append(_assigned(content._replace(shape=given.shape), value))
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


def made_up(content: Content) -> Array:
    """Return values for what is not known: floats of both signs, valid integers.

    Truth values are true, as of a question whether all is well.
    """
    dtype = tf.dtypes.as_dtype(content.dtype)
    if dtype == tf.string:
        return np.full(content.shape, b"", object)
    if dtype.is_bool:
        return np.ones(content.shape, np.bool_)
    random = np.random.default_rng(zlib.crc32(content.name.encode()))
    if dtype.is_floating or dtype.is_complex:
        return random.standard_normal(content.shape).astype(dtype.as_numpy_dtype)
    return random.integers(0, max(content.bound, 1), content.shape).astype(
        dtype.as_numpy_dtype
    )


def describe(variable: NodeDef, content: Content) -> None:
    """Let a node that is a variable, or the handle of one, mean `content`."""
    variable.attr["dtype"].type = content.dtype
    variable.attr["shape"].shape.SetInParent()
    for size in content.shape:
        variable.attr["shape"].shape.dim.add(size=size)
    variable.attr["shared_name"].s = content.name.encode()
