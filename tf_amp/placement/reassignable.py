"""Which nodes of a graph may run on another device, and which only together."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.eligibility.reachability import connected
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS, INPUT_OPS, RESULT_OPS
from grappler_pass.graph.type_slots import kernel_exists, op_def_of, signature_of
from grappler_pass.graph.view import GraphView, Node
from grappler_pass.graph.walks import function_attrs

_COLOCATION = b"loc:@"
# Belong to whoever calls the graph, or decide which of its nodes run.
_FIXED = INPUT_OPS | RESULT_OPS | CONTROL_FLOW_OPS | {"ControlTrigger", "NoOp"}
_PLAIN = frozenset(
    types_pb2.DataType.Value(f"DT_{name}")
    for name in "FLOAT DOUBLE HALF BFLOAT16 BOOL INT8 UINT8 INT32 INT64".split()
)


def may_move(view: GraphView, node: Node, device_types: Sequence[str]) -> bool:
    """Return whether a node may run on a device of any of these types.

    Not: what has state or draws random numbers, reads or makes other things than plain
    numbers, is part of a loop, calls functions, or is held by the caller.
    """
    if node.name in view.item.untouchable or view.frame(node.index) is not None:
        return False
    if not _is_pure(node.op) or any(function_attrs(node.proto)):
        return False
    signature = signature_of(node.proto)
    if not {arg.dtype for arg in (*signature.inputs, *signature.outputs)} <= _PLAIN:
        return False
    types = tuple(
        (name, value.type)
        for name, value in sorted(node.proto.attr.items())
        if value.WhichOneof("value") == "type"
    )
    return all(kernel_exists(node.op, types, each) for each in device_types)


def colocated(view: GraphView) -> tuple[tuple[int, ...], ...]:
    """Return all nodes in groups that must share a device: by `_class`.

    A class may name a node, which then belongs to the group, or stand for itself.
    """
    named: dict[str, int] = dict(view.index)
    pairs = [
        (node.index, named.setdefault(name, node.index))
        for node in view.nodes
        for name in (node.name, *_classes(node.proto))
    ]
    return tuple(connected(pairs))


def _classes(proto: NodeDef) -> tuple[str, ...]:
    if "_class" not in proto.attr:
        return ()
    values = proto.attr["_class"].list.s
    return tuple(
        v[len(_COLOCATION) :].decode() for v in values if v.startswith(_COLOCATION)
    )


@functools.cache
def _is_pure(op: str) -> bool:
    op_def = op_def_of(op)
    if op_def is None or op_def.is_stateful or op in _FIXED:
        return False
    return not any(arg.is_ref for arg in (*op_def.input_arg, *op_def.output_arg))
