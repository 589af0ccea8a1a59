"""What an op is, as far as precision cares: an update, a random draw, a fixed type.

Read off the OpDef where it says so, off the op's name where it does not.
"""

from __future__ import annotations

import functools
import re

from tensorflow.core.framework import op_def_pb2, types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph import op_table as table
from grappler_pass.graph.type_slots import op_def_of

_UPDATES = re.compile(
    r"(Resource)?(Sparse)?(Accumulator)?(Apply|Assign|Scatter|StridedSliceAssign)"
)
_DRAWS = re.compile(
    r"(Stateless|Stateful)?"
    r"(Random|Truncated|Standard|Uniform|Parameterized|Multinomial|Sample)"
)
INPUT = "an input of the graph"
RESULT = "a result of the graph"
_PASSING = table.IDENTITY_OPS | table.SWITCH_OPS | {"IdentityN"}
_CONSTANT = "a constant; 16-bit readers get a copy made beforehand"
_VARIABLE = "a variable, whose type is stored with it"
_BITS = "its result depends on the bits of its operand"
_COUNTS = "the size of its result depends on its operand's exact values"

_FIXED = {
    op: why
    for why, ops in (
        (INPUT, table.INPUT_OPS),
        (RESULT, table.RESULT_OPS),
        (_CONSTANT, table.CONSTANT_OPS),
        (_VARIABLE, table.VARIABLE_OPS | table.READ_OPS),
        (_BITS, {"Bitcast"}),
        (_COUNTS, table.SIZING_OPS),
    )
    for op in ops
}
# By these a kernel draws the same numbers in each run; with none it draws fresh ones.
_SEEDS = ("seed", "seed2")
# Names of an input that is a gradient, and of what only cuDNN's gradients can read.
_GRADIENTS = ("dy", "grad", "gradients", "grads", "input_grads", "y_backprop")
_RESERVES = ("reserve_space", "reserve_space_3")
_OPAQUE = frozenset({types_pb2.DT_STRING, types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT})


@functools.cache
def is_update(op: str) -> bool:
    """Return whether `op` writes a variable: Assign*, Apply*, Scatter*, Resource*."""
    op_def = op_def_of(op)
    if op_def is None or not op_def.input_arg or not _UPDATES.match(op):
        return False
    target = op_def.input_arg[0]
    return bool(target.is_ref) or target.type == types_pb2.DT_RESOURCE


@functools.cache
def has_effects(op: str) -> bool:
    """Return whether `op` matters though nobody reads it; an unknown op might."""
    op_def = op_def_of(op)
    return op_def is None or bool(op_def.is_stateful) or _has_reference(op_def)


@functools.cache
def keeps_kernel(op: str) -> bool:
    """Return whether all graphs of a Session share one kernel for a node of `op`."""
    op_def = None if op in table.PLAIN_CALL_OPS else op_def_of(op)
    return op_def is not None and bool(op_def.is_stateful)


@functools.cache
def is_random(op: str) -> bool:
    """Return whether `op` draws random numbers."""
    return _DRAWS.match(op) is not None


def keeps_state_in_kernel(node: NodeDef) -> bool:
    """Return whether two kernels of a node differ in what they have gone through.

    Each of them draws a stream of numbers of its own from the seed, or has a queue, a
    table, an accumulator or a batch of its own. Fresh random numbers tell nobody which
    kernel has drawn them.
    """
    if node.op in table.UNSHARED_OPS:
        return "shared_name" not in node.attr or not node.attr["shared_name"].s
    return any(name in node.attr and node.attr[name].i for name in _SEEDS)


@functools.cache
def why_fixed(op: str, is_listed: bool) -> str:
    """Return why the types of `op` cannot change; empty if they can.

    Args:
      op: a registered op.
      is_listed: whether a list lets it be in 16 bits. An op without such a row is
        fixed by state, by functions it calls, and by ports that are not numbers.
    """
    op_def = op_def_of(op)
    if op in _FIXED:
        return _FIXED[op]
    if op_def is None or _has_reference(op_def):
        return _VARIABLE
    if is_listed:
        return ""
    if op_def.is_stateful or is_random(op):
        return "has state"
    if any(attr.type in ("func", "list(func)") for attr in op_def.attr):
        return "calls functions, whose types are their own"
    if any(a.type in _OPAQUE for a in (*op_def.input_arg, *op_def.output_arg)):
        return "handles more than numbers"
    return ""


def _has_reference(op_def: op_def_pb2.OpDef) -> bool:
    return any(a.is_ref for a in (*op_def.input_arg, *op_def.output_arg))


def passes_on(op: str) -> bool:
    """Say whether the outputs of an op are inputs of it, unchanged, outside loops."""
    return op in _PASSING


def input_behind(op: str, output: int) -> int:
    """Return which input an output is, of an op that passes on."""
    return output if op == "IdentityN" else 0


def gradient_input(op: str) -> int:
    """Return which input is the gradient, of an op that passes a gradient on."""
    found = _named(op, "input_arg", _GRADIENTS)
    assert found is not None, f"{op} takes no gradient"
    return found


def reserve_output(op: str) -> int | None:
    """Return which output is a reserve space of cuDNN's, for the op's gradient."""
    return None if "Grad" in op else _named(op, "output_arg", _RESERVES)


def reserve_input(op: str) -> int | None:
    """Return which input is a reserve space of cuDNN's."""
    return _named(op, "input_arg", _RESERVES)


@functools.cache
def _named(op: str, kind: str, names: tuple[str, ...]) -> int | None:
    """Return the first input or output of an op that is called so; None without one."""
    args = getattr(op_def_of(op), kind, ())
    return next((i for i, arg in enumerate(args) if arg.name in names), None)
