"""What a function reads of variables that it has assigned to from gradients.

m.assign(0.9 * m + gradient)
v.assign_sub(rate * m)

On an overflow `m` stays unchanged, and so does `v`, which would move by the momentum of
the step before. Only what has the shape of the variable all the way is followed: what a
model computes from a new weight, such as statistics and losses of a second pass, is
never held back.

Not done: what a branch or a loop has assigned is not known after it, nor is it in a
`tf.Graph`, where nothing is ordered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tf_amp._tensorflow_private.tracing import captured_from, kept_with, outwards
from tf_amp.training.finiteness.votes import walk

_ASSIGNED = "_tf_amp_assigned_from_gradients"


class _Assigned(NamedTuple):
    """One assignment: whether it was done, and what had read the variable before."""

    finite: Any
    readers_before: frozenset[str]


def note(target: Any, finite: Any) -> None:
    """Remember that a variable takes something up only if gradients were finite.

    Args:
      target: the variable's handle, or a reference to it.
      finite: bool scalar.
    """
    graph = tf.compat.v1.get_default_graph()
    if target.dtype != tf.resource or not graph.building_function:
        return
    readers = frozenset(op.name for op in graph.capture(target).consumers())
    assigned = kept_with(graph, _ASSIGNED).setdefault(captured_from(target).ref(), [])
    assigned.append(_Assigned(finite, readers))


def flags_behind(value: Any) -> list[Any]:
    """Return whether assignments were done that a value was read after, bool scalars.

    Args:
      value: that is about to be assigned, a tensor of a graph.
    """
    graph = tf.compat.v1.get_default_graph()
    if not any(hasattr(one, _ASSIGNED) for one in outwards(graph)):
        return []

    def is_end(tensor: Any) -> bool:
        return bool(tensor.shape != value.shape)

    return [
        one.finite
        for tensor in walk([value], is_end, numbers_only=True)
        if tensor.op.type == "ReadVariableOp" and not is_end(tensor)
        for one in _assigned_before(tensor.op)
    ]


def _assigned_before(read: Any) -> list[_Assigned]:
    key = captured_from(read.inputs[0]).ref()
    known = (getattr(one, _ASSIGNED, {}).get(key, ()) for one in outwards(read.graph))
    return [
        one
        for assigned in known
        for one in assigned
        if read.name not in one.readers_before
    ]
