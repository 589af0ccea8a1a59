"""Whether the gradients that an optimizer is to apply were finite.

In a graph that shows by what they are made from: calls for gradients have cast votes,
and functions, loops and branches with such calls within have left their number of
overflows in the state. Only of a function's arguments nothing is known, nor of what is
within old loops: those that overflowed are not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import outwards
from tf_amp.training.finiteness import eager_steps, tallies, votes
from tf_amp.training.finiteness.of_gradients import agreed, are_finite, is_scalable
from tf_amp.training.loss_scale.variables import latest_state, states_in_use
from tf_amp.training.loss_scale.weights import Handles, handles_of, shape_of
from tf_amp.training.optimizers import assigned_values, called_functions
from tf_amp.training.optimizers.towers import update_as_one_step


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
    noted = tallies.meet(concerned, parts)
    if tf.executing_eagerly():
        if not all(map(bool, noted)):
            return False
        return eager_steps.is_to_be_taken(parts, states, optimizer)
    found = votes.ancestry_of(parts)
    update_as_one_step(found.votes)
    flags, are_all = called_functions.finite_flags(found, states)
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
        return eager_steps.is_to_be_written(target, value, states)
    graph = tf.compat.v1.get_default_graph()
    alike = [state for state in states if state.suits(target)]
    # Of a gradient that is given, a part may be written.
    like = [value, tf.TensorSpec(shape_of(target))] if alike else []
    may_be_given = any(_is_given(graph, each.shape) for each in like)
    if not may_be_given and not _any_around(graph, states):
        return None
    earlier = assigned_values.flags_behind(value)
    found = votes.ancestry_of([value], numbers_only=True)
    # Functions return losses beside gradients, which are summed up by other variables.
    in_question = states if alike else []
    flags, are_all = called_functions.finite_flags(found, in_question)
    if not are_all or _is_decided_on(found, value):
        flags.append(are_finite([value]))
    elif any(_is_shaped_as_one_of(like, one) for one in found.arguments):
        ever = tf.reduce_any(tf.stack([state.has_overflowed() for state in alike]))
        finite = tf.cond(ever, lambda: are_finite([value]), lambda: tf.constant(True))
        flags.append(finite)
    return _all([*flags, *earlier])


def _is_decided_on(found: votes.Ancestry, value: Any) -> bool:
    """Return whether gradients are behind branches, or in old loops, behind a value."""
    return not found.is_whole and votes.descends_from([value], votes.vote_on)


def _any_around(graph: Any, states: Sequence[Any]) -> bool:
    """Return whether there are calls for gradients in a graph, or one around it."""
    within = (called_functions.any_around(graph, state) for state in states)
    return votes.any_around(graph) or any(within)


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
    is_known = bool(weights and state.weights)
    return is_in_reach and (not is_known or state.has_trained(weights))


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
