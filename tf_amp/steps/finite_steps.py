"""Whether the gradients that an optimizer is to apply were finite.

In a graph that shows by what they are made from: calls for gradients have cast votes,
and functions, loops and branches with such calls within have left their number of
overflows in the state. Only of a function's arguments nothing is known; those left by
an overflow are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp.gradients import replica_votes, votes
from tf_amp.gradients.finiteness import is_scalable
from tf_amp.loss_scaling.variables import states_here
from tf_amp.steps import called_functions, eager_steps
from tf_amp.steps.eager_steps import any_nonzero
from tf_amp.steps.towers import settle_as_one_step


def finite_step(grads: Sequence[Any], optimizer: Any = None) -> Any:
    """Return whether a step is to be taken: a bool, a tensor, or None for surely.

    Args:
      grads: to be applied.
      optimizer: that is to apply them, where one does.
    """
    parts = tf.nest.flatten([_values(g) for g in grads if g is not None])
    parts = [part for part in parts if is_scalable(part)]
    if not parts:
        return None
    states = [state for state in states_here() if _can_be_read(state)]
    noted = replica_votes.settled_flags(states, parts)
    if tf.executing_eagerly():
        if not all(map(bool, noted)):
            return False
        return eager_steps.is_to_be_taken(parts, states, optimizer)
    found = votes.ancestry_of(parts)
    settle_as_one_step(found.votes)
    flags = [*noted, *(vote.finite for vote in found.votes)]
    of_calls = called_functions.finite_flags(found.calls, states)
    flags += [flag for flag in of_calls if flag is not None]
    is_open_ended = found.arguments or any(flag is None for flag in of_calls)
    if states and is_open_ended:
        flags.append(_finite_elsewhere(states, parts, found.arguments))
    if not flags:
        return None
    return flags[0] if len(flags) == 1 else tf.reduce_all(tf.stack(flags))


def _can_be_read(state: Any) -> bool:
    """Tell whether a state is not that of another strategy, which must not be mixed."""
    if not tf.distribute.has_strategy():
        return True
    variables = state.variables_by_kind.values()
    own = state.strategy is tf.distribute.get_strategy()
    return own or not any(
        isinstance(v, tf.distribute.DistributedValues) for v in variables
    )


def _finite_elsewhere(
    states: Sequence[Any], parts: Sequence[Any], arguments: Sequence[Any]
) -> Any:
    """Tell whether gradients that came in as arguments were finite.

    An overflow was noted in the state, and has left nothing but zeros. What is made of
    them may be none: a decay was added.
    """
    finite = tf.reduce_all(tf.stack([state.is_finite() for state in states]))
    given = [one for one in arguments if _is_shaped_as_one_of(parts, one)]

    def holds_some() -> Any:
        some = [any_nonzero(tensors) for tensors in (parts, given) if tensors]
        return tf.reduce_all(tf.stack(some))

    return tf.cond(finite, lambda: tf.constant(True), holds_some)


def _is_shaped_as_one_of(parts: Sequence[Any], argument: Any) -> bool:
    return any(argument.shape.is_compatible_with(part.shape) for part in parts)


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
