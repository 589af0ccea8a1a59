"""Assignments to variables that are skipped where gradients overflowed.

What a program writes by hand, be it a weight, a momentum or an average, stays unchanged
where its new value is computed from an overflow, or from a variable that has stayed
unchanged for one. So does a variable of the shape of a weight that eager code, or a
function given gradients, would write infinities into.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from grappler_pass.annotations import SKIPPED_ASSIGNMENT
from tf_amp._tensorflow_private import assigning as private
from tf_amp._tensorflow_private import install as install_hook
from tf_amp._tensorflow_private import wrapping
from tf_amp.tracing import bypass
from tf_amp.training.finite_steps import finite_value, note_assigned
from tf_amp.training.scale_update import is_scalable, must_select

Neutral = Callable[[Any, Mapping[str, Any], Any], Any]

_signature_of = functools.cache(inspect.signature)


def install() -> None:
    """Decorate what assigns to variables."""
    for hooks, neutral in (
        (private.WRITES, _present),
        (private.ROW_WRITES, _present_rows),
        (private.PART_WRITES, _present_parts),
        (private.SLICE_WRITES, _present_slice),
        (private.CHANGES, lambda target, arguments, values: tf.zeros_like(values)),
        (private.FACTORS, lambda target, arguments, values: tf.ones_like(values)),
    ):
        assign = functools.partial(_assign_unless_overflowed, neutral)
        for hook in hooks:
            install_hook(hook, wrapping(assign))


def _assign_unless_overflowed(
    neutral: Neutral, assign: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Do what an operation's function does, and change nothing after an overflow.

    Args:
      neutral: returns the values that would change nothing; takes the variable, all
        arguments by name, and the values.
      assign: takes a variable's handle or reference, which values of it to write where
        it does not write all, and the values.
      *args: of that function.
      **kwargs: of that function.
    """
    given = _signature_of(assign).bind(*args, **kwargs)
    given.apply_defaults()
    name = "updates" if "updates" in given.arguments else "value"
    target = next(iter(given.arguments.values()))
    values = given.arguments[name]
    skips = is_scalable(values) and not bypass.takes_all()
    finite = finite_value(target, values) if skips else None
    if finite is None:
        return assign(*args, **kwargs)
    if tf.is_tensor(finite):
        note_assigned(target, finite)
    # No branch can read a reference.
    read = target if target.dtype == tf.resource else tf.identity(target)
    instead = functools.partial(neutral, read, dict(given.arguments), values)
    given.arguments[name] = _chosen(finite, values, instead)
    return assign(*given.args, **given.kwargs)


def _chosen(finite: Any, values: Any, instead: Callable[[], Any]) -> Any:
    if isinstance(finite, bool):
        return values if finite else instead()
    with tf.name_scope(SKIPPED_ASSIGNMENT):
        if must_select():
            return tf.where(finite, values, instead())
        return tf.cond(finite, lambda: tf.identity(values), instead)


def _present(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    if target.dtype != tf.resource:
        return target
    return tf.raw_ops.ReadVariableOp(resource=target, dtype=values.dtype)


def _present_rows(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    return tf.gather(_present(target, arguments, values), arguments["indices"])


def _present_parts(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    return tf.gather_nd(_present(target, arguments, values), arguments["indices"])


def _present_slice(target: Any, arguments: Mapping[str, Any], values: Any) -> Any:
    where = {k: v for k, v in arguments.items() if k not in ("ref", "value", "name")}
    present = _present(target, arguments, values)
    return tf.raw_ops.StridedSlice(input=present, **where)
