"""Overflows that are added up beside a loss scale's counters.

Of an overflow within a branch, a loop or a function that is not counted, because
another one of the same tape has been, the counters would not show it.

Within a function, a branch or a loop that each replica traces for itself, nothing can
be agreed on, and variables that are the same on all replicas cannot be written. There
each replica counts its own calls and overflows; all of them meet, and adjust the loss
scale, when an optimizer asks whether to take the step.

`called_functions` finds which step is then skipped; eager optimizers, whose gradients
do not say what they come from, skip where there was any overflow since replicas have
met.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import kept_with
from tf_amp.message_codes import Code
from tf_amp.training.finiteness.of_gradients import largest_of, summed_over_replicas
from tf_amp.training.finiteness.scale_at_run_time import is_eager_outside
from tf_amp.training.finiteness.scale_update import ScaleUpdate
from tf_amp.training.loss_scale.placing import made_outside
from tf_amp.training.loss_scale.scale_state import ScaleState


@dataclasses.dataclass
class Tally:
    """Where overflows are added up.

    Attributes:
      variable: vector.
      place: of their number in it.
      is_of_replica: whether each replica adds up its own, and its calls behind them.
      limit: what the scale was cut to for any of these calls.
    """

    variable: Any
    place: int = 0
    is_of_replica: bool = False
    limit: float = math.inf


# On a state, by whether they are of replicas.
_TALLIES = "_tf_amp_tallies"


def tallies_of(state: ScaleState) -> list[Tally]:
    """Return the counters of a state, and what there is beside them."""
    counters = state.variables_by_kind["counters"]
    counted = Tally(counters, state.names["counters"].index("skipped_steps"))
    return [counted, *tallies_beside(state)]


def tallies_beside(state: ScaleState) -> list[Tally]:
    """Return those in which something may have been noted."""
    return list(_made_for(state).values())


def note_repeated(state: ScaleState, overflowed: Any) -> list[Any]:
    """Add up an overflow within a part of a function; return the operations that do.

    Args:
      state: of the loss scale.
      overflowed: whether there was one that is not counted, bool scalar.
    """
    if state.in_graph or state.is_per_worker:
        return []
    variable = _tally(state, is_of_replica=False).variable
    one = tf.cast(tf.stack([overflowed]), variable.dtype)
    return [variable.assign_add(one, read_value=False)]


def can_vote() -> bool:
    """Return whether gradients taken here can be checked; if not, say it once."""
    if private.can_merge() or is_eager_outside():
        return True
    Code.NOT_SCALED.warn_once(
        "Losses are not scaled, and gradients not checked, in functions and "
        "branches that the replicas of a strategy trace within a tf.Graph."
    )
    return False


def note_of_replica(state: ScaleState, finite: Any, limit: float) -> list[Any]:
    """Count a call of this replica; return the operation that does.

    Args:
      state: of the loss scale.
      finite: whether its gradients are, bool scalar.
      limit: what the scale was cut to.
    """
    tally = _tally(state, is_of_replica=True)
    tally.limit = min(tally.limit, limit)
    overflowed = tf.cast(tf.logical_not(finite), tf.float32)
    return [tally.variable.assign_add(tf.stack([overflowed, 1.0]), read_value=False)]


def meet(states: Sequence[ScaleState], gradients: Sequence[Any]) -> list[Any]:
    """Let replicas meet; return whether noted gradients were finite in all of them.

    Args:
      states: of the loss scales that gradients taken here may have changed.
      gradients: in true units.

    Returns:
      A bool scalar for each state that something may have been noted for.
    """
    noted = [(s, t) for s in states for t in tallies_beside(s) if t.is_of_replica]
    return [_updated(state, tally, gradients) for state, tally in noted]


def _updated(state: ScaleState, tally: Tally, gradients: Sequence[Any]) -> Any:
    counts = tally.variable
    overflows, calls = tf.unstack(summed_over_replicas(counts.read_value()))
    counts.assign(tf.zeros_like(counts), read_value=False)
    finite = tf.equal(overflows, 0.0)
    largest = functools.partial(largest_of, gradients)
    ScaleUpdate(state, state.read(), largest, calls > 0, tally.limit).apply(finite)
    return finite


def _tally(state: ScaleState, *, is_of_replica: bool) -> Tally:
    made = _made_for(state)
    if is_of_replica not in made:
        make = _made_on_replicas if is_of_replica else _made_beside
        variable = made_outside(functools.partial(make, state))
        made[is_of_replica] = Tally(variable, is_of_replica=is_of_replica)
    return made[is_of_replica]


def _made_for(state: ScaleState) -> dict[bool, Tally]:
    made: dict[bool, Tally] = kept_with(state, _TALLIES)
    return made


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


def _made_on_replicas(state: ScaleState) -> Any:
    with state.strategy.scope():
        return tf.Variable(
            [0.0, 0.0],
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            name="tf_amp_noted",
        )
