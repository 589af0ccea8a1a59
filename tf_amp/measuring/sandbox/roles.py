"""What becomes of each node when a graph is run for its time only.

What computes runs as it is; what brings data in from outside is replaced by synthetic
tensors; what acts on the outside is left out. The ops' definitions say which is which:
an op that does not declare itself stateful computes.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping

from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.functions.conversion import library_of
from grappler_pass.graph.op_table import (
    CALL_OPS,
    INPUT_OPS,
    LOOK_OPS,
    READ_OPS,
    REF_VARIABLE_OPS,
    RESULT_OPS,
)
from grappler_pass.graph.op_traits import is_random, is_update
from grappler_pass.graph.type_slots import op_def_of
from grappler_pass.graph.walks import function_attrs

OPAQUE = frozenset({types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})


class Role(enum.Enum):
    """What a node is in the sandbox."""

    COMPUTE = "runs as it is"
    PASS = "hands its first input on"
    HANDLE = "the handle of a variable, replaced by a private one's"
    VARIABLE = "holds its value itself; a private one of the same type"
    SOURCE = "left out, with synthetic tensors in place of its outputs"


# Their resource may be the handle of a variable.
HANDLES = frozenset({"_Arg", "Placeholder", "VarHandleOp"})
# These only watch what goes through; a made-up value must not stop the step.
_WATCHING = frozenset({"Print", "CheckNumerics", "CheckNumericsV2"})
# Their OpDefs claim that they have no state, and yet they reach out of the graph.
_UNDECLARED: Mapping[str, Role] = {
    "Abort": Role.SOURCE,
    "DebugIdentity": Role.PASS,
    "DebugIdentityV2": Role.PASS,
    "DebugIdentityV3": Role.PASS,
    "DebugNanCount": Role.SOURCE,
    "DebugNumericSummary": Role.SOURCE,
    "DebugNumericSummaryV2": Role.SOURCE,
    "MatchingFiles": Role.SOURCE,
    "PyFuncStateless": Role.SOURCE,
    "ReadFile": Role.SOURCE,
    "XlaLaunch": Role.SOURCE,
}
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


def roles_for(graph_def: GraphDef) -> Callable[[NodeDef], Role]:
    """Return what finds the role of each node of `graph_def`."""
    library = library_of(graph_def)
    harmless: dict[str, bool] = {}

    def role_of(node: NodeDef) -> Role:
        if node.op not in _CALLS and node.op not in library:
            return role_of_op(node.op)
        called = all(map(is_harmless, _called_by(node)))
        return Role.COMPUTE if called else Role.SOURCE

    def is_harmless(name: str) -> bool:
        """Return whether all that a function does may be done in the sandbox."""
        if name not in harmless:
            harmless[name] = True  # a recursive call adds nothing
            function = library.get(name)
            harmless[name] = function is not None and all(
                role_of(node) is Role.COMPUTE for node in function.node_def
            )
        return harmless[name]

    return role_of


@functools.cache
def role_of_op(op: str) -> Role:
    """Return the role of an op that calls no function."""
    if op in REF_VARIABLE_OPS:
        return Role.VARIABLE
    if op in _WATCHING:
        return Role.PASS
    if op in _UNDECLARED:
        return _UNDECLARED[op]
    if op == "VarHandleOp":
        return Role.HANDLE
    op_def = op_def_of(op)
    if op_def is None or op in _OUTSIDE or _takes_functions(op_def):
        return Role.SOURCE
    if _reads_text(op_def):
        return Role.SOURCE
    if op_def.is_stateful or _has_reference(op_def):
        return Role.COMPUTE if _has_private_state(op, op_def) else Role.SOURCE
    return Role.COMPUTE


def _has_private_state(op: str, op_def: op_def_pb2.OpDef) -> bool:
    if op in _PRIVATE_STATE or op.startswith(_PRIVATE_STATE_PREFIXES):
        return True
    makes_handle = any(arg.type in OPAQUE for arg in op_def.output_arg)
    return is_update(op) or (is_random(op) and not makes_handle)


def _has_reference(op_def: op_def_pb2.OpDef) -> bool:
    """Return whether an op hands on or takes a v1 handle that is no variable's."""
    fixed = (types_pb2.DT_STRING, *OPAQUE)
    args = (*op_def.input_arg, *op_def.output_arg)
    return any(arg.is_ref and arg.type in fixed for arg in args)


def _reads_text(op_def: op_def_pb2.OpDef) -> bool:
    """Return whether numbers are made of strings, which cannot be made up."""
    takes = any(arg.type == types_pb2.DT_STRING for arg in op_def.input_arg)
    makes = any(arg.type != types_pb2.DT_STRING for arg in op_def.output_arg)
    return takes and makes


def _takes_functions(op_def: op_def_pb2.OpDef) -> bool:
    """Return whether an op calls functions that its attributes name."""
    return any(attr.type in ("func", "list(func)") for attr in op_def.attr)


def _called_by(node: NodeDef) -> list[str]:
    """Name the functions that a node calls, itself if it is a call by name."""
    named = [node.op] if op_def_of(node.op) is None else []
    return [*named, *(function.name for function in function_attrs(node))]
