"""The role of each node when a graph is run for its time only.

What computes runs unchanged; what brings data in from outside is replaced by synthetic
tensors; what acts on the outside is left out. The ops' definitions say which is which:
an op that does not declare itself stateful computes.
What neighbors show of such data counts: shapes, and what integers must be less than.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.functions.conversion import library_of
from grappler_pass.graph.op_table import (
    CALL_OPS,
    FORWARDING_OPS,
    INPUT_OPS,
    LOOK_OPS,
    MERGE_OPS,
    READ_OPS,
    REF_VARIABLE_OPS,
    RESULT_OPS,
    VIEW_OPS,
)
from grappler_pass.graph.op_traits import is_random, is_update
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, shape_from_proto
from grappler_pass.graph.type_slots import op_def_of
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.graph.walks import function_attrs

_TEXT = types_pb2.DT_STRING
OPAQUE = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})
# Their resource may be the handle of a variable.
HANDLES = frozenset({"_Arg", "Placeholder", "VarHandleOp"})
# These only watch what goes through; a synthetic value must not stop the step.
_WATCHING = frozenset({"Print", "CheckNumerics", "CheckNumericsV2"})
# What a caller brings in or takes away; a default is computed.
_OUTSIDE = (INPUT_OPS | RESULT_OPS) - {"PlaceholderWithDefault"}
# Stateful, but the state is a private variable, or lives no longer than one step.
_PRIVATE_STATE = (
    READ_OPS
    | LOOK_OPS
    | frozenset(
        """DestroyTemporaryVariable IsVariableInitialized RngReadAndSkip RngSkip
    StackCloseV2 StackPopV2 StackPushV2 StackV2 TemporaryVariable""".split()
    )
)
_PRIVATE_STATE_PREFIXES = ("TensorArray", "CudnnRNN")
# Ops that do what the functions they call do, and nothing else.
_CALLS = CALL_OPS.keys() | {"MapDefun"}
# Ops whose output holds values of these inputs, moved but not changed (or by an
# offset that is only for negative ones).
_PASS = (
    FORWARDING_OPS
    | MERGE_OPS
    | VIEW_OPS
    | frozenset(
        """AddV2 BroadcastTo Cast ConcatV2 Maximum Minimum Pack ReadVariableOp Select
        SelectV2 StridedSlice Tile Transpose Unpack""".split()
    )
)
# Ops with results of unknown shape that have, as a rule, the shape of this input.
_SHAPED_LIKE = {"LookupTableFind": 1, "LookupTableFindV2": 1}
_Bound = Callable[[Graph, Shapes, Node], "int | None"]


class NodeRole(enum.Enum):
    """The part of a node in the sandbox."""

    COMPUTE = "runs unchanged"
    PASS = "passes its first input"
    HANDLE = "the handle of a variable, replaced by a private one's"
    VARIABLE = "holds its value itself; a private one of the same type"
    SOURCE = "left out, with synthetic tensors in place of its outputs"


# Their OpDefs claim that they have no state, and yet they reach out of the graph.
_UNDECLARED: Mapping[str, NodeRole] = {
    "Abort": NodeRole.SOURCE,
    "DebugIdentity": NodeRole.PASS,
    "DebugIdentityV2": NodeRole.PASS,
    "DebugIdentityV3": NodeRole.PASS,
    "DebugNanCount": NodeRole.SOURCE,
    "DebugNumericSummary": NodeRole.SOURCE,
    "DebugNumericSummaryV2": NodeRole.SOURCE,
    "MatchingFiles": NodeRole.SOURCE,
    "PyFuncStateless": NodeRole.SOURCE,
    "ReadFile": NodeRole.SOURCE,
    "XlaLaunch": NodeRole.SOURCE,
}


def roles_for(graph_def: GraphDef) -> Callable[[NodeDef], NodeRole]:
    """Return a function from nodes of `graph_def` to their roles."""
    library = library_of(graph_def)
    harmless: dict[str, bool] = {}

    def role_of(node: NodeDef) -> NodeRole:
        if node.op not in _CALLS and node.op not in library:
            return role_of_op(node.op)
        # An op without a definition is a call by name.
        named = [node.op] if op_def_of(node.op) is None else []
        called = [*named, *(function.name for function in function_attrs(node))]
        return NodeRole.COMPUTE if all(map(is_harmless, called)) else NodeRole.SOURCE

    def is_harmless(name: str) -> bool:
        """Return whether all that a function does may be done in the sandbox."""
        if name not in harmless:
            harmless[name] = True  # a recursive call adds nothing
            function = library.get(name)
            harmless[name] = function is not None and all(
                role_of(node) is NodeRole.COMPUTE for node in function.node_def
            )
        return harmless[name]

    return role_of


@functools.cache
def role_of_op(op: str) -> NodeRole:
    """Return the role of an op that calls no function."""
    if op in REF_VARIABLE_OPS:
        return NodeRole.VARIABLE
    if op in _WATCHING:
        return NodeRole.PASS
    if op in _UNDECLARED:
        return _UNDECLARED[op]
    if op == "VarHandleOp":
        return NodeRole.HANDLE
    op_def = op_def_of(op)
    if op_def is None or op in _OUTSIDE:
        return NodeRole.SOURCE
    takes = {arg.type for arg in op_def.input_arg}
    makes = {arg.type for arg in op_def.output_arg}
    # Numbers that are made of strings cannot be synthetic; nor are functions known.
    reads_text = _TEXT in takes and makes - {_TEXT}
    if reads_text or any("func" in attr.type for attr in op_def.attr):
        return NodeRole.SOURCE
    arguments = (*op_def.input_arg, *op_def.output_arg)
    # A handle of TensorFlow 1 that is no variable's.
    has_reference = any(
        arg.is_ref and arg.type in (_TEXT, *OPAQUE) for arg in arguments
    )
    if not (op_def.is_stateful or has_reference):
        return NodeRole.COMPUTE
    has_private_state = (
        op in _PRIVATE_STATE
        or op.startswith(_PRIVATE_STATE_PREFIXES)
        or is_update(op)
        or (is_random(op) and not makes & OPAQUE)
    )
    return NodeRole.COMPUTE if has_private_state else NodeRole.SOURCE


def shape_at(view: Graph, shapes: Shapes, port: Port) -> Shape | None:
    """Return the shape of a port, or what a neighbor shows of it; None: unknown."""
    shape = known_shape(shapes, view, port)
    node = view.nodes[port.node]
    if shape is None and node.op in _SHAPED_LIKE:
        shape = known_shape(shapes, view, node.inputs[_SHAPED_LIKE[node.op]])
    for reader in view.readers(port):
        if shape is None and view.nodes[reader.node].op == "EnsureShape":
            shape = known_shape(shapes, view, Port(reader.node, 0))
    return shape


def upper_bounds(view: Graph, shapes: Shapes) -> Mapping[Port, int]:
    """Return by port the bound of its integers, where a reader shows one."""
    bounds: dict[Port, int] = {}
    for node in view.nodes:
        position, bound_of = _INDEXED.get(node.op, (0, None))
        bound = bound_of and bound_of(view, shapes, node)
        if not bound:
            continue
        waiting = [node.inputs[position]]
        while waiting:
            port = waiting.pop()
            if bounds.get(port, bound + 1) <= bound:
                continue
            bounds[port] = bound
            producer = view.nodes[port.node]
            if producer.op in _PASS:
                waiting.extend(producer.inputs)
    return bounds


def _rows(view: Graph, shapes: Shapes, node: Node) -> int | None:
    """Return how many rows a gather chooses from."""
    shape = known_shape(shapes, view, node.inputs[0])
    axis = _constant(view, node.inputs[2]) if len(node.inputs) > 2 else 0
    if not shape or axis is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def _variable_rows(view: Graph, shapes: Shapes, node: Node) -> int | None:
    """Return how many rows the variable behind a handle has."""
    handle = view.nodes[node.inputs[0].node]
    while handle.op in FORWARDING_OPS:
        handle = view.nodes[handle.inputs[0].node]
    attrs = handle.proto.attr
    if handle.op == "VarHandleOp":
        shape = shape_from_proto(attrs["shape"].shape)
    elif "_handle_shapes" in attrs and attrs["_handle_shapes"].list.shape:
        shape = shape_from_proto(attrs["_handle_shapes"].list.shape[0])
    else:
        return None
    return shape[0] if shape else None


def _classes(view: Graph, shapes: Shapes, node: Node) -> int | None:
    shape = known_shape(shapes, view, node.inputs[0])
    return shape[-1] if shape else None


# Op -> which input is the index, and what it must be less than.
_INDEXED: Mapping[str, tuple[int, _Bound]] = {
    "Gather": (1, _rows),
    "GatherV2": (1, _rows),
    "OneHot": (0, lambda view, _, node: _constant(view, node.inputs[1])),
    "ResourceGather": (1, _variable_rows),
    "ResourceScatterAdd": (1, _variable_rows),
    "ResourceScatterSub": (1, _variable_rows),
    "ResourceScatterUpdate": (1, _variable_rows),
    "SparseSoftmaxCrossEntropyWithLogits": (1, _classes),
    "UnsortedSegmentSum": (1, lambda view, _, node: _constant(view, node.inputs[2])),
}


def _constant(view: Graph, port: Port) -> int | None:
    node = view.nodes[port.node]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.proto.attr["value"].tensor)
    return int(value.item()) if value.size == 1 else None
