"""Overflows within functions, loops and branches that were called.

Whether gradients overflowed within an operation shows by the number of skipped steps,
and of overflows not counted as such, or not yet, which are read before and after it:

Before   f(handle) --> gradients
After    read(handle) --> f(handle) --> read(handle); finite if both are equal

Where replicas count for themselves, they agree on it if they can.

An overflow of inner gradients, which others are taken of, explains one of these, and is
not to be counted twice.

Not done: what stays within the frames of an old while loop is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private import training as private
from tf_amp.training.finiteness import votes
from tf_amp.training.finiteness.of_gradients import agreed
from tf_amp.training.finiteness.tallies import Tally, tallies_of

# Of a graph: flags by call and state; names of the reads that are ordered by hand.
_FLAGS = "_tf_amp_finite_calls"
_READS = "_tf_amp_ordered_reads"


def finite_flags(
    found: votes.Ancestry, states: Sequence[Any]
) -> tuple[list[Any], bool]:
    """Return for calls behind tensors whether all was finite, bool scalars.

    Args:
      found: calls for gradients, and operations that call functions with such calls.
      states: of loss scales, which functions may have adjusted.

    Returns:
      Flags, and whether there are some for all functions that adjust a state.
    """
    of_calls = _flags_of_calls(found.calls, states)
    known = [flag for flag in of_calls if flag is not None]
    return [vote.finite for vote in found.votes] + known, None not in of_calls


def inner_flags(gradients: Sequence[Any], state: Any) -> list[Any]:
    """Return for each call that gradients were made from whether all was finite.

    Args:
      gradients: made here.
      state: that calls within functions have adjusted.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    if not votes.any_around(graph) and not any_around(graph, state):
        return []
    return finite_flags(votes.ancestry_of(gradients), [state])[0]


def _flags_of_calls(calls: Sequence[Any], states: Sequence[Any]) -> list[Any]:
    """Return flags of operations; None among them where it is not known."""
    flags: list[Any] = []
    of_replica: list[Any] = []
    for call in calls:
        for state in states:
            if state.is_per_worker:
                flags.append(None)
                continue
            for tally in tallies_of(state):
                handles = _handles(state, tally.variable)
                handle = next((t for t in call.inputs if _is_any(t, handles)), None)
                if handle is None:
                    continue
                known = tracing.can_order_by_hand(call)
                flag = _flag(call, handle, tally) if known else None
                (of_replica if known and tally.is_of_replica else flags).append(flag)
    if of_replica and private.can_merge():
        of_replica = [agreed(tf.reduce_all(tf.stack(of_replica)))]
    return flags + of_replica


def any_around(graph: Any, state: Any) -> bool:
    """Return whether a graph, or one around it, has calls that may adjust a state."""
    if state.is_per_worker:
        return False
    handles = _handles(state, state.variables_by_kind["counters"])
    for each in tracing.outwards(graph):
        inside = [inner for _, inner in getattr(each, "captures", ())]
        own = [handle for handle in handles if getattr(handle, "graph", None) is each]
        for tensor in [*own, *inside]:
            if _is_any(tensor, handles):
                if any(map(votes.calls_function, tensor.consumers())):
                    return True
    return False


def _handles(state: Any, variable: Any) -> list[Any]:
    """Return the handles, one of each replica, of a variable of a state."""
    return [one.handle for one in state.strategy.experimental_local_results(variable)]


def _is_any(tensor: Any, handles: Sequence[Any]) -> bool:
    """Return whether a tensor stands for one of some handles."""
    if tensor.dtype != tf.resource:
        return False
    source = tracing.captured_from(tensor)
    return any(source is handle for handle in handles)


def _flag(call: Any, handle: Any, tally: Tally) -> Any:
    """Return whether a call has added no overflow, made once for each call."""
    flags = tracing.kept_with(call.graph, _FLAGS)
    key = call.name, handle.ref()
    if key not in flags:
        with call.graph.as_default(), tf.device(None):
            flags[key] = _stays_the_same(call, handle, tally)
    return flags[key]


def _stays_the_same(call: Any, handle: Any, tally: Tally) -> Any:
    """Return whether one counter of a variable is the same before and after a call.

    TensorFlow orders what uses a variable within a function as it was written down. The
    call has been already, so that these reads are put in order here.
    """
    earlier, later = _neighbors(call, handle)
    dtype = tally.variable.dtype
    before = _read_after(earlier, handle, dtype)
    _order_by_hand(before)
    private.wait_instead(call, (), [before.op])
    after = _read_after([call], handle, dtype)
    if later:
        _order_by_hand(after)
    for other in later:
        private.wait_instead(other, (), [after.op])
    return tf.equal(before[tally.place], after[tally.place])


def _neighbors(call: Any, handle: Any) -> tuple[list[Any], list[Any]]:
    """Return what else uses a variable, before and after a call; within functions."""
    if not call.graph.building_function:
        return [], []
    places = {op.name: i for i, op in enumerate(call.graph.get_operations())}
    others = {call.name, *getattr(call.graph, _READS, ())}
    users = {op.name: op for op in handle.consumers() if op.name not in others}
    here = places[call.name]
    earlier = [op for name, op in users.items() if places[name] < here]
    later = [op for name, op in users.items() if places[name] > here]
    return earlier, later


def _read_after(operations: Sequence[Any], handle: Any, dtype: Any) -> Any:
    with tf.control_dependencies(None), tf.control_dependencies(operations):
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


def _order_by_hand(read: Any) -> None:
    tracing.order_by_hand(read.op)
    tracing.kept_with(read.graph, _READS, set).add(read.op.name)
