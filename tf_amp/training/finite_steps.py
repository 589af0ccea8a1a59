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
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.annotations import SCALE_UPDATE
from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import captured_from, kept_with, outwards
from tf_amp.training import finite_flags
from tf_amp.training.finite_flags import (
    FiniteFlag,
    overflow_counters_of,
    walk,
)
from tf_amp.training.scale_state import (
    handles_of,
    latest_state,
    shape_of,
    states_in_use,
)
from tf_amp.training.scale_update import agreed, are_finite, is_scalable, joined

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
    parts = [g.values if isinstance(g, tf.IndexedSlices) else g for g in grads]
    parts = [part for part in tf.nest.flatten(parts) if is_scalable(part)]
    if not parts:
        return None
    states = _readable_states()
    weights = handles_of(variables)
    latest, strategy = latest_state(), tf.distribute.get_strategy()
    # One that has scaled no gradients of these weights has nothing to do with it:
    # an overflow of another training is no news of this one.
    own = [
        state
        for state in states
        if state is latest or not weights or state.has_trained(weights)
    ]
    # Where no strategy is in force, it may be of one whose training rests: then its
    # replicas do not meet here.
    is_in_reach = tf.distribute.has_strategy()
    concerned = [
        state
        for state in own
        if state is latest or is_in_reach or state.strategy is strategy
    ]
    noted = finite_flags.let_replicas_meet(concerned, parts)
    if tf.executing_eagerly():
        if not all(map(bool, noted)):
            return False
        return finite_flags.is_to_be_taken(parts, own, optimizer)
    found = finite_flags.ancestry_of(parts)
    update_as_one_step(found.flags)
    flags, are_all = flags_of_calls(found, states)
    is_known = found.is_whole and are_all and not found.arguments
    if states and not is_known:
        finite = are_finite(parts)
        # What is made of gradients that came in as arguments may be finite where they
        # are not, once it is clipped. An argument may be infinite for other reasons: it
        # is looked at only where the latest gradients have overflowed.
        given = [one for one in found.arguments if _is_shaped_as_one_of(parts, one)]
        if given:
            latest = tf.reduce_all(tf.stack([state.is_finite() for state in states]))
            finite &= tf.cond(
                latest, lambda: tf.constant(True), lambda: are_finite(given)
            )
        # Of several workers each branches by itself, and optimizers wait for all of
        # them. In branches of their own replicas cannot agree, nor apply anything.
        flags.append(agreed(finite) if private.can_merge() else finite)
    return _all(flags)


def finite_value(target: Any, value: Any) -> Any:
    """Return whether a variable is to take a value up, or add it, as `finite_step`.

    Args:
      target: the variable's handle, or a reference to it.
      value: a tensor.
    """
    states = _readable_states()
    if not states:
        return None
    if tf.executing_eagerly():
        return finite_flags.is_to_be_written(target, value, states)
    graph = tf.compat.v1.get_default_graph()
    alike = [state for state in states if state.suits(target)]
    # Of a gradient that is given, a part may be written.
    like = [value, tf.TensorSpec(shape_of(target))] if alike else []
    inputs = (i for each in outwards(graph) for i in getattr(each, "inputs", ()))
    # First what is soon known: a graph has as many inputs as variables.
    if not _has_calls_around(graph, states) and not any(
        is_scalable(i) and _is_shaped_as_one_of(like, i) for i in inputs
    ):
        return None
    earlier = flags_of_reads(value)
    found = finite_flags.ancestry_of([value], numbers_only=True)
    # Functions return losses beside gradients, which are summed up by other variables.
    flags, are_all = flags_of_calls(found, states if alike else [])
    # Gradients may be behind branches, or in old loops.
    is_hidden = not found.is_whole and finite_flags.descends_from(
        [value], finite_flags.flag_on
    )
    if not are_all or is_hidden:
        flags.append(are_finite([value]))
    elif any(_is_shaped_as_one_of(like, one) for one in found.arguments):
        ever = tf.reduce_any(tf.stack([state.has_overflowed() for state in alike]))
        finite = tf.cond(ever, lambda: are_finite([value]), lambda: tf.constant(True))
        flags.append(finite)
    return _all([*flags, *earlier])


def _readable_states() -> list[Any]:
    """Return the states but those of other strategies, which must not be mixed."""
    states: list[Any] = states_in_use()
    if not tf.distribute.has_strategy():
        return states
    strategy = tf.distribute.get_strategy()
    return [
        state
        for state in states
        if state.strategy is strategy
        or not any(
            isinstance(variable, tf.distribute.DistributedValues)
            for variable in state.variables_by_kind.values()
        )
    ]


def _is_shaped_as_one_of(parts: Sequence[Any], argument: Any) -> bool:
    return any(argument.shape.is_compatible_with(part.shape) for part in parts)


def _all(flags: Sequence[Any]) -> Any:
    if not flags:
        return None
    return flags[0] if len(flags) == 1 else tf.reduce_all(tf.stack(flags))


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
    for (counter, handles), call in itertools.product(
        _counters_with_handles(states), found.calls
    ):
        handle = next((t for t in call.inputs if _is_any(t, handles)), None)
        if handle is None:
            continue
        if not tracing.can_order_by_hand(call):
            are_all = False
            continue
        known, key = kept_with(call.graph, _FLAGS), (call.name, handle.ref())
        if key not in known:
            with call.graph.as_default(), tf.device(None):
                known[key] = _stays_the_same(call, handle, counter)
        (of_replicas if counter.is_of_replica else flags).append(known[key])
    if of_replicas and private.can_merge():
        of_replicas = [agreed(tf.reduce_all(tf.stack(of_replicas)))]
    return flags + of_replicas, are_all


def inner_flags(gradients: Sequence[Any], state: Any) -> list[Any]:
    """Return for each call that gradients were made from whether all was finite.

    Args:
      gradients: made here.
      state: that calls within functions have adjusted.
    """
    if tf.executing_eagerly():
        return []
    if not _has_calls_around(tf.compat.v1.get_default_graph(), [state]):
        return []
    return flags_of_calls(finite_flags.ancestry_of(gradients), [state])[0]


def _has_calls_around(graph: Any, states: Sequence[Any]) -> bool:
    """Return whether there are calls for gradients in a graph, or one around it.

    They have left flags, or are in functions that are called with the state.
    """
    if finite_flags.any_flags_around(graph):
        return True
    handles = [handle for _, each in _counters_with_handles(states) for handle in each]

    def holds_calls(graph: Any) -> bool:
        own = [h for h in handles if getattr(h, "graph", None) is graph]
        inside = [inner for _, inner in getattr(graph, "captures", ())]
        return any(
            finite_flags.calls_function(reader)
            for tensor in (*own, *inside)
            if _is_any(tensor, handles)
            for reader in tensor.consumers()
        )

    return any(map(holds_calls, outwards(graph)))


def _counters_with_handles(states: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """Return counters of overflows, each with the handles of all its replicas."""
    return [
        (counter, [one.handle for one in local])
        for state in states
        if not state.is_per_worker
        for counter in overflow_counters_of(state)
        for local in [state.strategy.experimental_local_results(counter.variable)]
    ]


def _is_any(tensor: Any, handles: Sequence[Any]) -> bool:
    """Return whether a tensor stands for one of some handles."""
    if tensor.dtype != tf.resource:
        return False
    source = captured_from(tensor)
    return any(source is handle for handle in handles)


def _stays_the_same(call: Any, handle: Any, counter: Any) -> Any:
    """Return whether one counter of a variable is the same before and after a call.

    TensorFlow orders what uses a variable within a function as it was written down. The
    call has been already, so that these reads are put in order here.
    """
    graph = call.graph
    ordered = kept_with(graph, _READS, set)
    earlier: list[Any] = []
    later: list[Any] = []
    if graph.building_function:
        places = {op.name: i for i, op in enumerate(graph.get_operations())}
        users = {op.name: op for op in handle.consumers() if op.name not in ordered}
        for name, user in users.items():
            if name != call.name:
                is_earlier = places[name] < places[call.name]
                (earlier if is_earlier else later).append(user)

    def read_after(operations: Sequence[Any], *, is_ordered: bool) -> Any:
        with tf.control_dependencies(None), tf.control_dependencies(operations):
            dtype = counter.variable.dtype
            read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        if is_ordered:
            tracing.order_by_hand(read.op)
            ordered.add(read.op.name)
        return read

    before = read_after(earlier, is_ordered=True)
    private.wait_instead(call, (), [before.op])
    after = read_after([call], is_ordered=bool(later))
    for other in later:
        private.wait_instead(other, (), [after.op])
    return tf.equal(before[counter.place], after[counter.place])


class _Group(NamedTuple):
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
    by_state: dict[Any, list[Any]] = {}
    for flag in towers:
        by_state.setdefault(flag.scale_update.state, []).append(flag.scale_update)
    # An optimizer that waits for another must not let what they share wait for it.
    with tf.control_dependencies(None) if met else contextlib.nullcontext():
        with tf.name_scope(SCALE_UPDATE):
            together = tf.reduce_all(tf.stack([flag.own for flag in towers]))
            adjusting = tuple(
                op for one in by_state.values() for op in joined(one).apply(together)
            )
    for flag in towers:
        for old in [group.adjusting for group in met if flag in group.flags]:
            private.wait_instead(flag.updated, old, ())
        private.wait_instead(flag.updated, flag.adjusting, adjusting)
    groups[:] = [group for group in groups if group not in met]
    groups.append(_Group(tuple(towers), adjusting))


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

    reads = (
        tensor.op
        for tensor in walk([value], is_end, numbers_only=True)
        if tensor.op.type == "ReadVariableOp" and not is_end(tensor)
    )
    return [
        one.finite
        for read in reads
        for around in outwards(read.graph)
        for one in getattr(around, _ASSIGNED, {}).get(
            captured_from(read.inputs[0]).ref(), ()
        )
        if read.name not in one.readers_before
    ]
