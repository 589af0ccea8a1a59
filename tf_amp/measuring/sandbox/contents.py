"""Private variables: what they stand for, and how they are filled in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import tensor_util

from grappler_pass.costs.calls import DTYPE_BYTES

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

FILL = "tf_amp_fill"
VARIABLES = ("VarHandleOp", "VariableV2")

_SEED = (3, 14)
# Sums over more inputs than this are let grow: the weights need not be tinier.
_MOST_INPUTS = 4096
# What TensorFlow draws by itself; the rest is cast from float32.
_DRAWN = (types_pb2.DT_FLOAT, types_pb2.DT_DOUBLE)


@dataclasses.dataclass(frozen=True)
class Content:
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
    values are true; strings are empty. What is alike is made once.

    Args:
      contents: of private variables.
      values: of all contents, by name; None: they are made up.
    """
    filling = _Filling()
    for content in contents:
        filling.add(content, None if values is None else values[content.name])
    return filling.graph_def(), filling.feeds


class _Filling:
    """Nodes made so far; each is named by its number."""

    def __init__(self) -> None:
        self._made = GraphDef()
        self._values: dict[tuple[object, ...], str] = {}
        self._assigned: list[str] = []
        self.feeds: dict[str, Array] = {}

    def graph_def(self) -> GraphDef:
        done = self._made.node.add(name=FILL, op="NoOp")
        done.input.extend(f"^{name}" for name in self._assigned)
        return self._made

    def add(self, content: Content, given: Array | None) -> None:
        if given is not None:
            content = dataclasses.replace(content, shape=tuple(map(int, given.shape)))
        op = "VariableV2" if content.is_reference else "VarHandleOp"
        variable = self._node(op)
        describe(variable, content)
        variable.device = content.device
        value = self._value(content) if given is None else self._fed(content, given)
        if content.is_reference:
            assign = self._node("Assign", variable.name, value)
            assign.attr["T"].type = content.dtype
        else:
            assign = self._node("AssignVariableOp", variable.name, value)
            assign.attr["dtype"].type = content.dtype
        assign.device = content.device
        self._assigned.append(assign.name)

    def _fed(self, content: Content, given: Array) -> str:
        place = self._node("Placeholder")
        place.attr["dtype"].type = content.dtype
        kind = tf.dtypes.as_dtype(content.dtype).as_numpy_dtype
        self.feeds[place.name] = given.astype(kind, copy=False)
        return str(place.name)

    def _value(self, content: Content) -> str:
        dtype = tf.dtypes.as_dtype(content.dtype)
        if dtype.is_floating:
            least, most = _range(content)
        elif dtype.is_integer and content.bound > 1:
            least, most = 0.0, float(min(content.bound, dtype.max))
        else:
            least = most = float(dtype.is_bool)
        key = (content.dtype, content.shape, least, most)
        if key not in self._values:
            self._values[key] = self._made_up(dtype, content.shape, least, most)
        return self._values[key]

    def _made_up(
        self, dtype: tf.DType, shape: Sequence[int], least: float, most: float
    ) -> str:
        if least == most:
            scalar = "" if dtype == tf.string else least
            one = self._constant(np.array(scalar, dtype.as_numpy_dtype))
            return self._typed("Fill", dtype, self._sizes(shape), one)
        drawn = dtype if dtype.as_datatype_enum in _DRAWN else tf.float32
        seed = self._constant(np.array(_SEED, np.int64))
        random = self._node("StatelessRandomUniform", self._sizes(shape), seed)
        random.attr["dtype"].type = drawn.as_datatype_enum
        kind = drawn.as_numpy_dtype
        scale = self._constant(np.array(most - least, kind))
        draw = self._typed("Mul", drawn, random.name, scale)
        draw = self._typed("AddV2", drawn, draw, self._constant(np.array(least, kind)))
        return draw if dtype == drawn else self._cast(draw, drawn, dtype)

    def _cast(self, value: str, source: tf.DType, target: tf.DType) -> str:
        cast = self._node("Cast", value)
        cast.attr["SrcT"].type = source.as_datatype_enum
        cast.attr["DstT"].type = target.as_datatype_enum
        return str(cast.name)

    def _sizes(self, shape: Sequence[int]) -> str:
        return self._constant(np.array(shape, np.int32))

    def _constant(self, value: np.ndarray) -> str:
        node = self._node("Const")
        proto = tensor_util.make_tensor_proto(value)
        node.attr["value"].tensor.CopyFrom(proto)
        node.attr["dtype"].type = proto.dtype
        return str(node.name)

    def _typed(self, op: str, dtype: tf.DType, *inputs: str) -> str:
        node = self._node(op, *inputs)
        node.attr["T"].type = dtype.as_datatype_enum
        return str(node.name)

    def _node(self, op: str, *inputs: str) -> NodeDef:
        name = f"{FILL}_{len(self._made.node)}"
        return self._made.node.add(name=name, op=op, input=inputs)


def describe(variable: NodeDef, content: Content) -> None:
    """Let a node that is a variable, or the handle of one, mean `content`."""
    variable.attr["dtype"].type = content.dtype
    variable.attr["shape"].shape.SetInParent()
    for size in content.shape:
        variable.attr["shape"].shape.dim.add(size=size)
    variable.attr["shared_name"].s = content.name.encode()


def _range(content: Content) -> tuple[float, float]:
    """Return the least and the most of a floating content."""
    if not content.is_state or len(content.shape) < 2:
        return 0.5, 1.5
    inputs = min(math.prod(content.shape[:-1]), _MOST_INPUTS)
    return 0.5 / max(inputs, 1), 1.5 / max(inputs, 1)
