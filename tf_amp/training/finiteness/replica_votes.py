"""Votes of replicas that cannot meet where they take their gradients.

Within a function, a branch or a loop that each replica traces for itself, nothing can
be agreed on, and variables that are the same on all replicas cannot be written. There
each replica counts its own calls and overflows; all of them meet, and adjust the loss
scale, when an optimizer asks whether to take the step. The first of several optimizers
learns of all overflows so far, and the others in its graph what it has learned.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_amp._tensorflow_private import training as private
from tf_amp.tracing.lifted_variables import made_outside
from tf_amp.training.finiteness import votes
from tf_amp.training.finiteness.of_gradients import on_several_replicas
from tf_amp.training.gradients.scale_update import ScaleUpdate
from tf_amp.training.loss_scale.scale_state import ScaleState

# Of a graph: what its optimizers have learned, by state, in order.
_MEETINGS = "_tf_amp_meetings"


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
            "Losses are not scaled, and gradients not checked, in functions and "
            "branches that the replicas of a strategy trace within a tf.Graph.",
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
        _noted[state] = _Noted(_made_apart(state.strategy), limit)
    noted = _noted[state]
    noted.limit = min(noted.limit, limit)
    overflowed = tf.cast(tf.logical_not(finite), tf.float32)
    return [noted.counts.assign_add(tf.stack([overflowed, 1.0]), read_value=False)]


def has_noted(state: ScaleState) -> bool:
    """Return whether replicas have noted calls that they have not met on, perhaps."""
    return state in _noted


def updated_flags(states: Sequence[ScaleState], gradients: Sequence[Any]) -> list[Any]:
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
    return finite if tf.executing_eagerly() else _with_earlier(state, finite, gradients)


def _with_earlier(state: ScaleState, finite: Any, gradients: Sequence[Any]) -> Any:
    """Return whether all was finite that may have been noted with gradients.

    An optimizer that has asked since they were taken has taken their votes.
    """
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, _MEETINGS):
        setattr(graph, _MEETINGS, {})
    meetings = getattr(graph, _MEETINGS).setdefault(state, [])
    places = {op: place for place, op in enumerate(graph.get_operations())}
    calls = votes.ancestry_of(gradients).calls
    taken = min((places.get(call, 0) for call in calls), default=0)
    since = [flag for flag in meetings if places[flag.op] > taken]
    meetings.append(finite)
    return tf.reduce_all(tf.stack([finite, *since]))


def _sum_over_replicas(own: Any) -> Any:
    if not on_several_replicas():
        return own
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, own)


def _made_apart(strategy: Any) -> Any:
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
