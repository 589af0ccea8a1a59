"""Which probes may be run, and the op of one at a dtype.

An op is run many times, on made-up data and behind the program's back, so it may have
no effect but its result. The pass asks for no others; this is the place that makes
sure.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.costs.database.probes import MEASURED_DTYPE, Probe
from grappler_pass.eligibility.fused_ops import can_split, split_fused
from grappler_pass.eligibility.numerics.kernel_limits import has_kernel
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS
from grappler_pass.graph.type_slots import DTYPE_ENUMS, admits, op_def_of
from tf_amp.measuring.sandbox.roles import OPAQUE, Role, role_of_op
from tf_amp.measuring.sandbox.synthetic import UnfitError

_REFUSED = OPAQUE | {types_pb2.DT_STRING}


def check_runnable(probe: Probe, dtype: str, device_type: str) -> None:
    """Raise unless running the op does nothing but compute, and a kernel exists.

    Raises:
      UnfitError: the op has state or effects, takes or makes what is no plain tensor,
        calls functions, or has no kernel for this dtype on this type of device.
    """
    op_def = op_def_of(probe.op)
    computes = role_of_op(probe.op) is Role.COMPUTE and probe.op not in CONTROL_FLOW_OPS
    if op_def is None or op_def.is_stateful or not (computes and probe.inputs):
        raise UnfitError(f"{probe.op} does more, or other, than compute from inputs")
    node = node_at(probe, dtype, device_type)
    if "strides" in node.attr and _lacks_rank(probe, len(node.attr["strides"].list.i)):
        raise UnfitError(
            f"{probe.op} would end the process: an operand's rank is unknown"
        )
    ports = (*op_def.input_arg, *op_def.output_arg)
    if any(_is_refused(port, dict(node.attr)) for port in ports):
        raise UnfitError(f"{probe.op} takes or makes handles or text")
    types = tuple((name, int(v.type)) for name, v in node.attr.items() if v.type)
    has_own = _admits(probe, dtype) and has_kernel(probe.op, node, types, device_type)
    if not has_own and not can_split(node, DTYPE_ENUMS[dtype], device_type):
        raise UnfitError(f"{probe.op} has no kernel for {dtype} on a {device_type}")


def node_at(probe: Probe, dtype: str, device_type: str) -> NodeDef:
    """Return the node of a probe's op at a dtype, its inputs named by position."""
    return NodeDef(
        name="probe",
        op=probe.op,
        device=f"/device:{device_type}:0",
        input=[str(position) for position in range(len(probe.inputs))],
        attr=attrs_at(probe, dtype),
    )


def attrs_at(probe: Probe, dtype: str) -> dict[str, AttrValue]:
    """Return the attributes of a probe's op, its own dtypes set to `dtype`."""
    attrs = {name: text_format.Parse(text, AttrValue()) for name, text in probe.attrs}
    op_def = op_def_of(probe.op)
    for attr in op_def.attr if op_def else ():
        if attr.HasField("default_value") and attr.name not in attrs:
            attrs[attr.name] = AttrValue.FromString(
                attr.default_value.SerializeToString()
            )
    enum = DTYPE_ENUMS[dtype]
    for name, index in probe.dtype_attrs:
        value = attrs.setdefault(name, AttrValue())
        if value.HasField("list"):
            value.list.type[index] = enum
        else:
            value.type = enum
    return attrs


def op_at(probe: Probe, dtype: str, device_type: str, inputs: Sequence[Any]) -> Any:
    """Add the op at a dtype to the default graph and return it.

    A fused op that has no kernel for the dtype is added as its parts, which is what the
    pass makes of it.
    """
    graph = tf.compat.v1.get_default_graph()
    tensors = {str(position): tensor for position, tensor in enumerate(inputs)}
    is_flat = len(inputs) > 2 and inputs[2].shape.rank == 1
    for part in _parts_at(probe, dtype, device_type, has_flat_bias=is_flat):
        op = graph.create_op(
            part.op,
            [tensors[name] for name in part.input],
            None,
            name="probe",
            attrs=dict(part.attr),
        )
        tensors[part.name] = op.outputs[0]
    return op


@functools.lru_cache(maxsize=8)
def _parts_at(
    probe: Probe, dtype: str, device_type: str, *, has_flat_bias: bool
) -> tuple[NodeDef, ...]:
    """Return the node of a probe's op, or its parts; a chain asks for it many times."""
    node = node_at(probe, dtype, device_type)
    parts = split_fused(
        node,
        DTYPE_ENUMS[dtype],
        lambda name: name,
        device_type=device_type,
        has_flat_bias=has_flat_bias,
    )
    return tuple(parts)


def dtypes_of(probe: Probe, low_dtype: str) -> tuple[str, ...]:
    """Return the dtypes that a probe is measured at, for a plan with `low_dtype`."""
    if probe.dtype_attrs or any(s.dtype == MEASURED_DTYPE for s in probe.inputs):
        return ("float32", low_dtype)
    for name, text in probe.attrs:
        if name == "DstT":
            enum = text_format.Parse(text, AttrValue()).type
            return (str(tf.as_dtype(enum).name),)
    return ("float32",)


def _admits(probe: Probe, dtype: str) -> bool:
    enum = DTYPE_ENUMS[dtype]
    return all(admits(probe.op, name, enum) for name, _ in probe.dtype_attrs)


def _lacks_rank(probe: Probe, rank: int) -> bool:
    """Return whether a convolution's image, or an operand of its gradient, is none."""
    tensors = [spec for spec in probe.inputs if spec.dtype == MEASURED_DTYPE]
    if "Backprop" not in probe.op:
        tensors = tensors[:1]
    return rank > 1 and any(len(spec.shape or ()) != rank for spec in tensors)


def _is_refused(port: op_def_pb2.OpDef.ArgDef, attrs: dict[str, AttrValue]) -> bool:
    if port.is_ref or port.type in _REFUSED:
        return True
    value = attrs.get(port.type_attr or port.type_list_attr)
    if value is None:
        return False
    return bool(_REFUSED & {value.type, *value.list.type})
