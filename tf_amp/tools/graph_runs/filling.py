"""Give private variables the values that a graph is to be run on."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from tf_amp.measuring.sandbox.contents import Content, describe
from tf_amp.tools.graph_runs.cases import Values
from tf_amp.tools.graph_runs.differences import Array

HANDLES = ("VarHandleOp", "VariableV2")
FILLED = "filled"


def filling_graph(
    contents: Sequence[Content], values: Values
) -> tuple[GraphDef, dict[str, Array]]:
    """Return a graph that gives contents their values, and what to feed it with."""
    graph_def, feeds = GraphDef(), {}
    filled = graph_def.node.add(name=FILLED, op="NoOp")
    for number, content in enumerate(contents):
        value = _in_type(values[content.name], content.dtype)
        shaped = dataclasses.replace(content, shape=tuple(map(int, value.shape)))
        op = "VariableV2" if content.is_reference else "VarHandleOp"
        variable = graph_def.node.add(name=f"variable_{number}", op=op)
        variable.device = content.device
        describe(variable, shaped)
        given = graph_def.node.add(name=f"value_{number}", op="Placeholder")
        given.attr["dtype"].type = content.dtype
        op = "Assign" if content.is_reference else "AssignVariableOp"
        assign = graph_def.node.add(name=f"assign_{number}", op=op)
        assign.attr["T" if content.is_reference else "dtype"].type = content.dtype
        assign.device = content.device
        assign.input.extend([variable.name, given.name])
        filled.input.append(f"^{assign.name}")
        feeds[given.name] = value
    return graph_def, feeds


def _in_type(value: Array, dtype: int) -> Array:
    wanted = tf.dtypes.as_dtype(dtype)
    if wanted == tf.string:
        return value.astype(object)
    return value.astype(wanted.as_numpy_dtype, copy=False)


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
