"""Whether gradients that an optimizer applies, or a program assigns, were finite.

In a graph that shows by what they are made from: calls for gradients leave a flag on
their results, and functions, loops and branches with such calls within leave their
number of overflows in the state. It is read before and after them, with the overflows
that are not counted as skipped steps, or not yet:

Before   f(handle) --> gradients
After    read(handle) --> f(handle) --> read(handle); finite if both are equal

Where replicas count for themselves, they agree on it if they can. Only of a function's
arguments nothing is known, nor of what is within old loops: those that overflowed are
not finite.

What a function reads of a variable that it has assigned to from gradients carries the
flag of that assignment:

m.assign(0.9 * m + gradient)
v.assign_sub(rate * m)

On an overflow `m` stays unchanged, and so does `v`, which would move by the momentum of
the step before. Only what has the shape of the variable all the way is followed: what a
model computes from a new weight, such as statistics and losses of a second pass, is
never held back.

Not done: what a branch or a loop has assigned is not known after it, nor is it in a
`tf.Graph`, where nothing is ordered; the frames of an old while loop are not looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import captured_from, kept_with, outwards
from tf_amp.training import finite_flags
from tf_amp.training.checkpoint_record import Handles
from tf_amp.training.finite_flags import (
    FiniteFlag,
    OverflowCounter,
    overflow_counters_of,
    walk,
)
from tf_amp.training.scale_state import (
    ScaleState,
    handles_of,
    latest_state,
    scale_update_scope,
    shape_of,
    states_in_use,
)
from tf_amp.training.scale_update import (
    ScaleUpdate,
    agreed,
    are_finite,
    is_scalable,
    joined,
)

# Of a graph: assignments by variable; flags by call and counter; names of the reads
# that are ordered by hand; groups of towers.
_ASSIGNED = "_tf_amp_assigned_from_gradients"
_FLAGS = "_tf_amp_finite_calls"
_READS = "_tf_amp_ordered_reads"
_GROUPS = "_tf_amp_towers"


def finite_step(
    grads: Sequence[Any], variables: Sequence[Any], optimizer: Any = None
) -> Any:
    """Return whether a step is to be taken: a bool, a tensor, or None for surely.

    Args:
      grads: to be applied.
      variables: to which; none where that is not known.
      optimizer: that is to apply them, where one does.
    """
    parts = tf.nest.flatten([_values(g) for g in grads if g is not None])
    parts = [part for part in parts if is_scalable(part)]
    if not parts:
        return None
    states = [state for state in states_in_use() if _can_be_read(state)]
    weights = handles_of(variables)
    concerned = [state for state in states if _is_concerned(state, weights)]
    noted = finite_flags.let_replicas_meet(concerned, parts)
    if tf.executing_eagerly():
        if not all(map(bool, noted)):
            return False
        # An overflow of another training is no news of this one.
        own = [state for state in states if _may_have_trained(state, weights)]
        return finite_flags.is_to_be_taken(parts, own, optimizer)
    found = finite_flags.ancestry_of(parts)
    update_as_one_step(found.flags)
    flags, are_all = flags_of_calls(found, states)
    is_known = found.is_whole and are_all and not found.arguments
    if states and not is_known:
        flags.append(_finite_elsewhere(states, parts, found.arguments))
    return _all(flags)


def finite_value(target: Any, value: Any) -> Any:
    """Return whether a variable is to take a value up, or add it, as `finite_step`.

    Args:
      target: the variable's handle, or a reference to it.
      value: a tensor.
    """
    states = [state for state in states_in_use() if _can_be_read(state)]
    if not states:
        return None
    if tf.executing_eagerly():
        return finite_flags.is_to_be_written(target, value, states)
    graph = tf.compat.v1.get_default_graph()
    alike = [state for state in states if state.suits(target)]
    # Of a gradient that is given, a part may be written.
    like = [value, tf.TensorSpec(shape_of(target))] if alike else []
    may_be_given = any(_is_given(graph, each.shape) for each in like)
    if not may_be_given and not _any_around(graph, states):
        return None
    earlier = flags_of_reads(value)
    found = finite_flags.ancestry_of([value], numbers_only=True)
    # Functions return losses beside gradients, which are summed up by other variables.
    in_question = states if alike else []
    flags, are_all = flags_of_calls(found, in_question)
    if not are_all or _is_decided_on(found, value):
        flags.append(are_finite([value]))
    elif any(_is_shaped_as_one_of(like, one) for one in found.arguments):
        ever = tf.reduce_any(tf.stack([state.has_overflowed() for state in alike]))
        finite = tf.cond(ever, lambda: are_finite([value]), lambda: tf.constant(True))
        flags.append(finite)
    return _all([*flags, *earlier])


def _is_decided_on(found: finite_flags.Ancestry, value: Any) -> bool:
    """Return whether gradients are behind branches, or in old loops, behind a value."""
    return not found.is_whole and finite_flags.descends_from(
        [value], finite_flags.flag_on
    )


def _any_around(graph: Any, states: Sequence[Any]) -> bool:
    """Return whether there are calls for gradients in a graph, or one around it."""
    within = (any_calls_around(graph, state) for state in states)
    return finite_flags.any_flags_around(graph) or any(within)


def _is_given(graph: Any, shape: Any) -> bool:
    """Return whether a function being traced is given a tensor of a shape."""
    inputs = (i for each in outwards(graph) for i in getattr(each, "inputs", ()))
    return any(is_scalable(i) and i.shape.is_compatible_with(shape) for i in inputs)


def _all(flags: Sequence[Any]) -> Any:
    if not flags:
        return None
    return flags[0] if len(flags) == 1 else tf.reduce_all(tf.stack(flags))


def _can_be_read(state: Any) -> bool:
    """Say whether a state is not that of another strategy, which must not be mixed."""
    if not tf.distribute.has_strategy():
        return True
    variables = state.variables_by_kind.values()
    own = state.strategy is tf.distribute.get_strategy()
    return own or not any(
        isinstance(v, tf.distribute.DistributedValues) for v in variables
    )


def _is_concerned(state: Any, weights: Handles) -> bool:
    """Say whether replicas of a state may meet here: not for another training's step.

    Where no strategy is in force, the state may be of one whose training rests. One
    that has scaled gradients of other weights has nothing to do with this step.
    """
    if state is latest_state():
        return True
    is_of_strategy = state.strategy is tf.distribute.get_strategy()
    is_in_reach = is_of_strategy or tf.distribute.has_strategy()
    return is_in_reach and _may_have_trained(state, weights)


def _may_have_trained(state: Any, weights: Handles) -> bool:
    """Return whether gradients of some weights may have been scaled by a state."""
    is_known = bool(weights and state.weights)
    return not is_known or state is latest_state() or state.has_trained(weights)


def _finite_elsewhere(
    states: Sequence[Any], parts: Sequence[Any], arguments: Sequence[Any]
) -> Any:
    """Return whether gradients of unknown origin are finite.

    What is made of those that came in as arguments may be finite where they are not,
    once it is clipped. An argument may be infinite for other reasons: it is looked at
    only where the latest gradients have overflowed.
    """
    finite = are_finite(parts)
    given = [one for one in arguments if _is_shaped_as_one_of(parts, one)]
    if given:
        latest = tf.reduce_all(tf.stack([state.is_finite() for state in states]))
        finite &= tf.cond(latest, lambda: tf.constant(True), lambda: are_finite(given))
    # Of several workers each branches by itself, and optimizers wait for all of them.
    # In branches of their own replicas cannot agree, nor apply anything.
    return agreed(finite) if private.can_merge() else finite


def _is_shaped_as_one_of(parts: Sequence[Any], argument: Any) -> bool:
    return any(argument.shape.is_compatible_with(part.shape) for part in parts)


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def flags_of_calls(
    found: finite_flags.Ancestry, states: Sequence[Any]
) -> tuple[list[Any], bool]:
    """Return for calls behind tensors whether all was finite, bool scalars.

    Args:
      found: calls for gradients, and operations that call functions with such calls.
      states: of loss scales, which functions may have adjusted.

    Returns:
      Flags, and whether there are some for all functions that adjust a state.
    """
    flags = [flag.finite for flag in found.flags]
    of_replicas: list[Any] = []
    are_all = not (found.calls and any(state.is_per_worker for state in states))
    for call, counter, handle in _counted_calls(found.calls, states):
        if not tracing.can_order_by_hand(call):
            are_all = False
            continue
        flag = _flag(call, handle, counter)
        (of_replicas if counter.is_of_replica else flags).append(flag)
    if of_replicas and private.can_merge():
        of_replicas = [agreed(tf.reduce_all(tf.stack(of_replicas)))]
    return flags + of_replicas, are_all


def _counted_calls(
    calls: Sequence[Any], states: Sequence[Any]
) -> Iterator[tuple[Any, OverflowCounter, Any]]:
    """Yield operations, the counters that they may add to, and the handles of these."""
    for state in states:
        for counter in () if state.is_per_worker else overflow_counters_of(state):
            handles = _handles(state, counter.variable)
            for call in calls:
                handle = next((t for t in call.inputs if _is_any(t, handles)), None)
                if handle is not None:
                    yield call, counter, handle


def inner_flags(gradients: Sequence[Any], state: Any) -> list[Any]:
    """Return for each call that gradients were made from whether all was finite.

    Args:
      gradients: made here.
      state: that calls within functions have adjusted.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    if not finite_flags.any_flags_around(graph) and not any_calls_around(graph, state):
        return []
    return flags_of_calls(finite_flags.ancestry_of(gradients), [state])[0]


def any_calls_around(graph: Any, state: Any) -> bool:
    """Return whether a graph, or one around it, has calls that may adjust a state."""
    if state.is_per_worker:
        return False
    handles = _handles(state, state.variables_by_kind["counters"])
    for each in tracing.outwards(graph):
        inside = [inner for _, inner in getattr(each, "captures", ())]
        own = [handle for handle in handles if getattr(handle, "graph", None) is each]
        for tensor in [*own, *inside]:
            if _is_any(tensor, handles):
                if any(map(finite_flags.calls_function, tensor.consumers())):
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


def _flag(call: Any, handle: Any, counter: OverflowCounter) -> Any:
    """Return whether a call has added no overflow, made once for each call."""
    flags = tracing.kept_with(call.graph, _FLAGS)
    key = call.name, handle.ref()
    if key not in flags:
        with call.graph.as_default(), tf.device(None):
            flags[key] = _stays_the_same(call, handle, counter)
    return flags[key]


def _stays_the_same(call: Any, handle: Any, counter: OverflowCounter) -> Any:
    """Return whether one counter of a variable is the same before and after a call.

    TensorFlow orders what uses a variable within a function as it was written down. The
    call has been already, so that these reads are put in order here.
    """
    earlier, later = _neighbors(call, handle)
    dtype = counter.variable.dtype
    before = _read_after(earlier, handle, dtype)
    _order_by_hand(before)
    private.wait_instead(call, (), [before.op])
    after = _read_after([call], handle, dtype)
    if later:
        _order_by_hand(after)
    for other in later:
        private.wait_instead(other, (), [after.op])
    return tf.equal(before[counter.place], after[counter.place])


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


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
    """Towers that change the loss scale once.

    Attributes:
      flags: one of each tower.
      adjusting: what adjusts the loss scale.
    """

    flags: tuple[FiniteFlag, ...]
    adjusting: tuple[Any, ...]


def update_as_one_step(found: Sequence[FiniteFlag]) -> None:
    """Let the towers of one step change the loss scale together.

    Several optimizers may apply what comes from the same towers.
    """
    waiting = [flag for flag in found if flag.updated is not None]
    if len(waiting) < 2:
        return
    groups: list[_Group] = kept_with(waiting[0].updated.graph, _GROUPS, list)
    met = [group for group in groups if not set(waiting).isdisjoint(group.flags)]
    if any(set(waiting) <= set(group.flags) for group in met):
        return
    towers = dict.fromkeys([flag for group in met for flag in group.flags] + waiting)
    # An optimizer that waits for another must not let what they share wait for it.
    with tf.control_dependencies(None) if met else contextlib.nullcontext():
        adjusting = _update(tuple(towers))
    for flag in towers:
        for old in [group.adjusting for group in met if flag in group.flags]:
            private.wait_instead(flag.updated, old, ())
        private.wait_instead(flag.updated, flag.adjusting, adjusting)
    groups[:] = [group for group in groups if group not in met]
    groups.append(_Group(tuple(towers), adjusting))


def _update(towers: Sequence[FiniteFlag]) -> tuple[Any, ...]:
    """Add what adjusts each loss scale if one of the towers overflows."""
    by_state: dict[ScaleState, list[ScaleUpdate]] = {}
    for flag in towers:
        by_state.setdefault(flag.scale_update.state, []).append(flag.scale_update)
    with scale_update_scope():
        together = tf.reduce_all(tf.stack([flag.own for flag in towers]))
        return tuple(
            op for one in by_state.values() for op in joined(one).apply(together)
        )


class _Assigned(NamedTuple):
    """One assignment: whether it was done, and what had read the variable before."""

    finite: Any
    readers_before: frozenset[str]


def note_assigned(target: Any, finite: Any) -> None:
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


def flags_of_reads(value: Any) -> list[Any]:
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
