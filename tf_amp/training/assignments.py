"""Assignments to variables that are skipped where gradients overflowed.

What a program writes by hand, be it a weight, a momentum or an average, stays unchanged
where its new value is computed from an overflow, or from a variable that has stayed
unchanged for one. So does a variable of the shape of a weight that eager code, or a
function given gradients, would write infinities into.

All operations go through one function in a graph, and through another one in eager
mode; both are watched once gradients are scaled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.annotations import SKIPPED_ASSIGNMENT
from tf_amp._tensorflow_private import install as install_hooks
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private import wrapping
from tf_amp.tracing import stack
from tf_amp.training.finite_steps import finite_value, note_assigned
from tf_amp.training.scale_update import is_scalable, must_select

Neutral = Callable[[Any, Mapping[str, Any], Any], Any]


class _Assignment(NamedTuple):
    """An operation that assigns to a variable.

    Attributes:
      neutral: returns the values that would change nothing; takes the variable, all
        arguments by name, and the values.
      values: the name of the argument with the values.
      place: of the values among the operation's inputs, of which the variable, by
        handle or by reference, is the first.
    """

    neutral: Neutral
    values: str
    place: int


def install() -> None:
    """Watch what assigns to variables."""
    install_hooks(
        {
            private.ADD_OPERATION: wrapping(_add_unless_overflowed),
            private.EXECUTE_EAGERLY: wrapping(_execute_unless_overflowed),
        }
    )


def _add_unless_overflowed(
    add: Callable[..., Any], op_type: str, name: Any = None, **arguments: Any
) -> Any:
    """Add an operation to a graph; where gradients overflowed it changes nothing."""
    assignment = _ASSIGNMENTS.get(op_type)
    if assignment is not None:
        values = arguments[assignment.values]
        target = next(arguments[each] for each in _TARGETS if each in arguments)
        finite = _finite(target, values)
        if finite is not None:
            note_assigned(target, finite)
            # No branch can read a reference.
            read = target if target.dtype == tf.resource else tf.identity(target)
            instead = functools.partial(assignment.neutral, read, arguments, values)
            with tf.name_scope(SKIPPED_ASSIGNMENT):
                if must_select():
                    chosen = tf.where(finite, values, instead())
                else:
                    chosen = tf.cond(finite, lambda: tf.identity(values), instead)
            arguments = arguments | {assignment.values: chosen}
    return add(op_type, name, **arguments)


def _execute_unless_overflowed(
    execute: Callable[..., Any], context: Any, op_type: str, name: Any, *inputs: Any
) -> Any:
    """Execute an operation, unless it would write what overflowed."""
    assignment = _ASSIGNMENTS.get(op_type)
    if assignment is not None:
        finite = _finite(inputs[0], inputs[assignment.place])
        if finite is not None and not finite:
            return None
    return execute(context, op_type, name, *inputs)


def _finite(target: Any, values: Any) -> Any:
    """Return whether values are to be assigned: as a tensor, or None for surely."""
    if not is_scalable(values) or stack.takes_all():
        return None
    return finite_value(target, values)


def _zeros(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    return tf.zeros_like(values)


def _ones(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    return tf.ones_like(values)


def _present(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    if target.dtype != tf.resource:
        return target
    return tf.raw_ops.ReadVariableOp(resource=target, dtype=values.dtype)


def _present_rows(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    return tf.gather(_present(target, arguments, values), arguments["indices"])


def _present_parts(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    return tf.gather_nd(_present(target, arguments, values), arguments["indices"])


def _present_slice(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    where = {k: v for k, v in arguments.items() if k not in ("ref", "value")}
    present = _present(target, arguments, values)
    return tf.raw_ops.StridedSlice(input=present, **where)


# What the operations call the variable.
_TARGETS = ("resource", "ref")
_WHOLE, _PARTS, _SLICE = ("value", 1), ("updates", 2), ("value", 4)
_ASSIGNMENTS = {
    "AssignVariableOp": _Assignment(_present, *_WHOLE),
    "Assign": _Assignment(_present, *_WHOLE),
    "AssignAddVariableOp": _Assignment(_zeros, *_WHOLE),
    "AssignSubVariableOp": _Assignment(_zeros, *_WHOLE),
    "AssignAdd": _Assignment(_zeros, *_WHOLE),
    "AssignSub": _Assignment(_zeros, *_WHOLE),
    "ResourceStridedSliceAssign": _Assignment(_present_slice, *_SLICE),
    "StridedSliceAssign": _Assignment(_present_slice, *_SLICE),
    **{
        f"{kind}{change}": _Assignment(neutral, *_PARTS)
        for kind, present in (
            ("ResourceScatter", _present_rows),
            ("Scatter", _present_rows),
            ("ResourceScatterNd", _present_parts),
            ("ScatterNd", _present_parts),
        )
        for change, neutral in (
            ("Update", present),
            ("Max", present),
            ("Min", present),
            ("Add", _zeros),
            ("Sub", _zeros),
            ("Mul", _ones),
            ("Div", _ones),
        )
    },
}
