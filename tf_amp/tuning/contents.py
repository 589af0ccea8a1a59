"""Made-up values for private variables: what they are, and how they are filled in."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from grappler_pass.costs.calls import DTYPE_BYTES

_SEED = (3, 14)
# Sums over more inputs than this are let grow: the weights need not be tinier.
_MOST_INPUTS = 4096


@dataclasses.dataclass(frozen=True)
class Content:
    """A private variable: what it holds stands for a variable or an input.

    Attributes:
      name: shared by all nodes that mean it.
      dtype: DataType enum.
      shape: all known; guesses where the program's is not.
      bound: integers are at least 0 and less than this.
      is_state: it stands for a variable of the program, not for data.
      is_reference: a variable of TensorFlow 1, which has no handle.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]
    bound: int = 1
    is_state: bool = False
    is_reference: bool = False

    @property
    def size_bytes(self) -> int:
        """Return what it takes in memory."""
        name = tf.dtypes.as_dtype(self.dtype).name
        return math.prod(self.shape) * DTYPE_BYTES.get(name, 8)


def fill(contents: Iterable[Content]) -> Any:
    """Add to the present graph an operation that fills in all contents; return it.

    Numbers are positive, so that roots and logarithms are defined, and small, so that
    sums of products stay of the size of their operands. Integers are spread over what
    their readers take as an index, and 0 where there is no such reader; truth values
    are true; strings are empty.
    """
    return tf.group(*[_assign(content) for content in contents])


def _assign(content: Content) -> Any:
    dtype = tf.dtypes.as_dtype(content.dtype)
    value = _value(content, dtype)
    if content.is_reference:
        variable = tf.raw_ops.VariableV2(
            shape=content.shape, dtype=dtype, shared_name=content.name
        )
        return tf.raw_ops.Assign(ref=variable, value=value).op
    handle = tf.raw_ops.VarHandleOp(
        dtype=dtype, shape=content.shape, shared_name=content.name
    )
    return tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _value(content: Content, dtype: tf.DType) -> tf.Tensor:
    if dtype.is_floating:
        least, most = _range(content)
        drawn = dtype if dtype.size <= 8 and dtype in _DRAWN else tf.float32
        draw = tf.random.stateless_uniform(content.shape, _SEED, least, most, drawn)
        return tf.cast(draw, dtype)
    if dtype.is_integer and content.bound > 1:
        most = min(content.bound, dtype.max)
        drawn = tf.int64 if most > tf.int32.max else tf.int32
        draw = tf.random.stateless_uniform(content.shape, _SEED, 0, most, drawn)
        return tf.cast(draw, dtype)
    value = tf.ones((), dtype) if dtype.is_bool else tf.zeros((), dtype)
    return tf.fill(content.shape, value)


_DRAWN = (tf.float32, tf.float64)


def _range(content: Content) -> tuple[float, float]:
    """Return the least and the most of a floating content."""
    if not content.is_state or len(content.shape) < 2:
        return 0.5, 1.5
    inputs = min(math.prod(content.shape[:-1]), _MOST_INPUTS)
    return 0.5 / max(inputs, 1), 1.5 / max(inputs, 1)
