"""From a probe back to the call it measures; TensorFlow infers the outputs.

A list of measured prices holds probes; to compare them with a profile they are priced
as calls.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from google.protobuf import text_format
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import dtypes, errors, tensor_util

from grappler_pass.costs.calls import OpCall, TensorSpec, attrs_from_node_def
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Constant, Probe
from grappler_pass.graph.shapes import (
    Shapes,
    proto_from_shape,
    shapes_from_graph_def,
)
from grappler_pass.graph.type_slots import op_def_of, signature_of

# What a probe that somebody else wrote may lead to: attributes that do not fit its op,
# numbers that do not fit their type, a type where a list has no place for it.
_REFUSED = (
    *(errors.OpError, text_format.ParseError, TypeError, ValueError),
    *(ArithmeticError, LookupError, RecursionError),
)


def calls_from_probes(probes: Iterable[Probe]) -> dict[str, OpCall]:
    """Return the call of each probe by the probe's key, in float32.

    A probe of an op that this TensorFlow does not have, or with shapes that the op
    refuses, is left out.
    """
    known = [probe for probe in probes if op_def_of(probe.op) is not None]
    return _calls(known) if known else {}


def _calls(probes: list[Probe]) -> dict[str, OpCall]:
    """Infer all at once; where that fails halve, until it is known what is refused."""
    try:
        return _inferred(probes)
    except _REFUSED:
        if len(probes) == 1:
            return {}
        middle = len(probes) // 2
        return {**_calls(probes[:middle]), **_calls(probes[middle:])}


def _inferred(probes: list[Probe]) -> dict[str, OpCall]:
    graph = GraphDef()
    for number, probe in enumerate(probes):
        constants = dict(probe.constants)
        names = [f"p{number}/in{position}" for position in range(len(probe.inputs))]
        for position, (name, spec) in enumerate(zip(names, probe.inputs, strict=True)):
            constant = constants.get(position)
            graph.node.append(
                _placeholder(name, spec) if constant is None else _const(name, constant)
            )
        run = graph.node.add(name=f"p{number}/run", op=probe.op, input=names)
        for name, value in probe.attrs:
            text_format.Parse(value, run.attr[name])
        for name, index in probe.dtype_attrs:
            if run.attr[name].HasField("list"):
                run.attr[name].list.type[index] = types_pb2.DT_FLOAT
            else:
                run.attr[name].type = types_pb2.DT_FLOAT
    shapes = shapes_from_graph_def(graph)
    runs = {node.name: node for node in graph.node}
    return {
        probe.key: _call(probe, runs[f"p{number}/run"], shapes)
        for number, probe in enumerate(probes)
    }


def _call(probe: Probe, run: NodeDef, shapes: Shapes) -> OpCall:
    outputs = signature_of(run).outputs
    return OpCall(
        probe.op,
        attrs_from_node_def(run),
        tuple(map(_as_float32, probe.inputs)),
        tuple(
            TensorSpec(shape, str(dtypes.as_dtype(arg.dtype).name))
            for shape, arg in zip(shapes.get(run.name, ()), outputs, strict=False)
        ),
    )


def _as_float32(spec: TensorSpec) -> TensorSpec:
    if spec.dtype != MEASURED_DTYPE:
        return spec
    return TensorSpec(spec.shape, "float32")


def _placeholder(name: str, spec: TensorSpec) -> NodeDef:
    node = NodeDef(name=name, op="Placeholder")
    dtype = dtypes.as_dtype(_as_float32(spec).dtype)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(proto_from_shape(spec.dims))
    return node


def _const(name: str, constant: Constant) -> NodeDef:
    node = NodeDef(name=name, op="Const")
    dtype = dtypes.as_dtype(constant.dtype)
    values = np.array(constant.values, dtype.as_numpy_dtype).reshape(constant.shape)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(values))
    return node
