"""Votes of replicas that cannot meet where they take their gradients.

Within a function, a branch or a loop that each replica traces for itself, nothing can
be agreed on, and variables that are the same on all replicas cannot be written. There
each replica counts its own calls and overflows; all of them meet, and adjust the loss
scale, when an optimizer asks whether to take the step. `called_functions` finds which
step is then skipped; eager optimizers, whose gradients do not say what they come from,
skip where there was any overflow since replicas have met.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_amp._tensorflow_private import training as private
from tf_amp.message_codes import Code
from tf_amp.tracing.lifted_variables import made_outside
from tf_amp.training.finiteness.of_gradients import on_several_replicas
from tf_amp.training.gradients.scale_update import ScaleUpdate
from tf_amp.training.loss_scale.scale_state import ScaleState


@dataclasses.dataclass
class _Noted:
    """What replicas have noted for one state since they have met last.

    Attributes:
      counts: of each replica, the overflows and the calls.
      limit: what the scale was cut to for any of them.
    """

    counts: Any
    limit: float


_noted: weakref.WeakKeyDictionary[ScaleState, _Noted] = weakref.WeakKeyDictionary()


def can_vote() -> bool:
    """Return whether gradients taken here can be checked; if not, say it once."""
    if private.can_merge():
        return True
    with tf.init_scope():
        is_eager = tf.executing_eagerly()
    if not is_eager:
        logging.log_first_n(
            logging.WARNING,
            Code.NOT_SCALED.ends(
                "Losses are not scaled, and gradients not checked, in functions and "
                "branches that the replicas of a strategy trace within a tf.Graph."
            ),
            1,
        )
    return bool(is_eager)


def note(state: ScaleState, finite: Any, limit: float) -> list[Any]:
    """Count a call of this replica; return the operation that does.

    Args:
      state: of the loss scale.
      finite: whether its gradients are, bool scalar.
      limit: what the scale was cut to.
    """
    if state not in _noted:
        _noted[state] = _Noted(_made_outside(state.strategy), limit)
    noted = _noted[state]
    noted.limit = min(noted.limit, limit)
    overflowed = tf.cast(tf.logical_not(finite), tf.float32)
    return [noted.counts.assign_add(tf.stack([overflowed, 1.0]), read_value=False)]


def tally_of(state: ScaleState) -> Any | None:
    """Return the variable whose first value adds up overflows; None: nothing is noted.

    It is float32, of shape [2], and has a value of its own on each replica.
    """
    return _noted[state].counts if state in _noted else None


def meet(states: Sequence[ScaleState], gradients: Sequence[Any]) -> list[Any]:
    """Let replicas meet; return whether noted gradients were finite in all of them.

    Args:
      states: of the loss scales that gradients taken here may have changed.
      gradients: in true units.

    Returns:
      A bool scalar for each state that something may have been noted for.
    """
    return [_updated(state, gradients) for state in states if state in _noted]


def _updated(state: ScaleState, gradients: Sequence[Any]) -> Any:
    noted = _noted[state]
    counts = noted.counts
    overflows, calls = tf.unstack(_sum_over_replicas(counts.read_value()))
    counts.assign(tf.zeros_like(counts), read_value=False)
    finite = tf.equal(overflows, 0.0)
    before = state.read()
    scale_update = ScaleUpdate(state, before, gradients, calls > 0, noted.limit)
    scale_update.apply(finite)
    return finite


def _sum_over_replicas(own: Any) -> Any:
    if not on_several_replicas():
        return own
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, own)


def _made_outside(strategy: Any) -> Any:
    """Make two counters on each replica."""

    def make() -> Any:
        with strategy.scope():
            return tf.Variable(
                [0.0, 0.0],
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name="tf_amp_noted",
            )

    return made_outside(make)
