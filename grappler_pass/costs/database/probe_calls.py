"""From a probe back to the call it measures; TensorFlow infers the outputs.

A list of measured prices holds probes; to compare them with a profile they are priced
as calls.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from google.protobuf import text_format
from tensorflow.core.framework import attr_value_pb2, types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import dtypes, errors, tensor_util

from grappler_pass.costs.calls import OpCall, TensorSpec, attrs_from_node_def
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Constant, Probe
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
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


def graph_from_probe(probe: Probe, prefix: str = "") -> GraphDef:
    """Return the op as node `prefix`run, reading placeholders and constants."""
    graph = GraphDef()
    run = NodeDef(name=f"{prefix}run", op=probe.op)
    for name, value in probe.attrs:
        text_format.Parse(value, run.attr[name])
    for name, index in probe.dtype_attrs:
        _set_float32(run.attr[name], index)
    constants = dict(probe.constants)
    for position, spec in enumerate(probe.inputs):
        constant = constants.get(position)
        name = f"{prefix}in{position}"
        graph.node.append(
            _placeholder(name, spec) if constant is None else _const(name, constant)
        )
        run.input.append(name)
    graph.node.append(run)
    return graph


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
        graph.node.extend(graph_from_probe(probe, f"p{number}/").node)
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


def _set_float32(value: attr_value_pb2.AttrValue, index: int) -> None:
    if not value.HasField("list"):
        value.type = types_pb2.DT_FLOAT
        return
    value.list.type[index] = types_pb2.DT_FLOAT


def _placeholder(name: str, spec: TensorSpec) -> NodeDef:
    node = NodeDef(name=name, op="Placeholder")
    dtype = dtypes.as_dtype(_as_float32(spec).dtype)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["shape"].shape.SetInParent()
    for size in spec.dims:
        node.attr["shape"].shape.dim.add(size=size)
    return node


def _const(name: str, constant: Constant) -> NodeDef:
    node = NodeDef(name=name, op="Const")
    dtype = dtypes.as_dtype(constant.dtype)
    values = np.array(constant.values, dtype.as_numpy_dtype).reshape(constant.shape)
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(values))
    return node
