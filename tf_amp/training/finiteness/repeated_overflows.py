"""Overflows that are not counted, because another one of the same tape has been.

Of one within a branch, a loop or a function the counters would not tell. They are added
up separately, for whoever makes a step of what comes out there: see `called_functions`.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from tf_amp.tracing.lifted_variables import made_outside
from tf_amp.training.loss_scale.scale_state import ScaleState

_tallies: weakref.WeakKeyDictionary[ScaleState, Any] = weakref.WeakKeyDictionary()


def note(state: ScaleState, overflowed: Any) -> list[Any]:
    """Add up an overflow within a part of a function; return the operations that do.

    Args:
      state: of the loss scale.
      overflowed: whether there was one that is not counted, bool scalar.
    """
    if state.in_graph or state.is_per_worker:
        return []
    if state not in _tallies:
        _tallies[state] = made_outside(lambda: _made_beside(state))
    tally = _tallies[state]
    one = tf.cast(tf.stack([overflowed]), tally.dtype)
    return [tally.assign_add(one, read_value=False)]


def tally_of(state: ScaleState) -> Any | None:
    """Return the variable, int64 of shape [1]; None where nothing can be noted."""
    return _tallies.get(state)


def _made_beside(state: ScaleState) -> Any:
    counters = state.variables_by_kind["counters"]
    local = state.strategy.experimental_local_results(counters)[0]
    with state.strategy.scope(), tf.device(local.device):
        return tf.Variable(
            tf.zeros([1], tf.int64),
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="tf_amp_repeated_overflows",
        )
