"""Which probes may be run, and the op of one at a dtype.

An op is run many times, on made-up data and behind the program's back, so it may have
no effect but its result. The pass asks for no others; this is the place that makes
sure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from grappler_pass.costs.probes import MEASURED_DTYPE, Probe
from grappler_pass.type_slots import DTYPE_ENUMS, kernel_exists, op_def_of
from tf_amp.tuning.synthetic import Unfit

_REFUSED_TYPES = frozenset({"resource", "variant", "string"})
_REFUSED_ENUMS = frozenset(
    tf.as_dtype(name).as_datatype_enum for name in _REFUSED_TYPES
)
# Their OpDefs claim that they have no state.
_WITH_EFFECTS = frozenset(
    """
    Abort ControlTrigger DebugIdentity DebugIdentityV2 DebugIdentityV3 DebugNanCount
    DebugNumericSummary DebugNumericSummaryV2 Enter Exit LoopCond Merge NextIteration
    PyFuncStateless RefEnter RefExit RefIdentity RefMerge RefNextIteration RefSelect
    RefSwitch Switch XlaLaunch
    """.split()
)


def check_runnable(probe: Probe, dtype: str, device_type: str) -> None:
    """Raise unless running the op does nothing but compute, and a kernel exists.

    Raises:
      Unfit: the op has state or effects, takes or makes what is no plain tensor, calls
        functions, or has no kernel for this dtype on this type of device.
    """
    op_def = op_def_of(probe.op)
    if op_def is None:
        raise Unfit(f"{probe.op} is not an op of this TensorFlow")
    if op_def.is_stateful or probe.op in _WITH_EFFECTS:
        raise Unfit(f"{probe.op} has state or effects")
    if any(attr.type in ("func", "list(func)") for attr in op_def.attr):
        raise Unfit(f"{probe.op} calls functions")
    if not probe.inputs:
        raise Unfit(f"{probe.op} computes nothing from inputs")
    if any(spec.dtype in _REFUSED_TYPES for spec in probe.inputs):
        raise Unfit(f"{probe.op} takes handles or text")
    attrs = attrs_at(probe, dtype)
    ports = (*op_def.input_arg, *op_def.output_arg)
    if any(_is_refused(port, attrs) for port in ports):
        raise Unfit(f"{probe.op} takes or makes handles or text")
    types = tuple((name, int(v.type)) for name, v in attrs.items() if v.type)
    if not kernel_exists(probe.op, types, device_type):
        raise Unfit(f"{probe.op} has no kernel for {dtype} on a {device_type}")


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


def op_at(probe: Probe, dtype: str, inputs: Sequence[Any]) -> Any:
    """Add the op at a dtype to the default graph and return it."""
    graph = tf.compat.v1.get_default_graph()
    return graph.create_op(
        probe.op, list(inputs), None, name="probe", attrs=attrs_at(probe, dtype)
    )


def dtypes_of(probe: Probe, low_dtype: str) -> tuple[str, ...]:
    """Return the dtypes that a probe is measured at, for a plan with `low_dtype`."""
    if probe.dtype_attrs or any(s.dtype == MEASURED_DTYPE for s in probe.inputs):
        return ("float32", low_dtype)
    for name, text in probe.attrs:
        if name == "DstT":
            enum = text_format.Parse(text, AttrValue()).type
            return (str(tf.as_dtype(enum).name),)
    return ("float32",)


def _is_refused(port: op_def_pb2.OpDef.ArgDef, attrs: dict[str, AttrValue]) -> bool:
    if port.is_ref or port.type in _REFUSED_ENUMS:
        return True
    value = attrs.get(port.type_attr or port.type_list_attr)
    if value is None:
        return False
    return bool(_REFUSED_ENUMS & {value.type, *value.list.type})
