"""The states of loss scales, made when they are first needed.

There is one state per loss scale, strategy and graph; functions share the one outside
of all functions. Without a strategy it lives where most of the variables do that
gradients were first taken of, as an optimizer's slots do.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private import graphs
from tf_amp._tensorflow_private.tracing import kept_with
from tf_amp._tensorflow_private.training import can_merge
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.training import restored_scales
from tf_amp.training.scale_state import ScaleState, made_outside, place_here
from tf_amp.training.weights import Handles, handles_of

_STATES = "_tf_amp_loss_scale_states"
_lock = renewed_lock()

# By identity of loss scale and strategy, which a state keeps alive.
_States = dict[tuple[int, int], ScaleState]
_eager_states: _States = {}
# A graph dies with whoever made it, and its states with it.
_latest: list[weakref.ref[ScaleState]] = []


def state_of(loss_scale: LossScale, sources: Any = ()) -> ScaleState:
    """Return the state of a loss scale here, made if there is none yet.

    Args:
      loss_scale: the specification.
      sources: nest of what gradients are taken of, variables among it; where there are
        none, a new state lives on the device in whose scope this is called.

    Raises:
      CheckpointMismatchError: with these weights another loss scale was saved.
    """
    strategy = tf.distribute.get_strategy()
    key = (id(loss_scale), id(strategy))
    if key not in _home():
        _in_cross_replica_context(lambda: _make(loss_scale, strategy, sources))
    state = _home()[key]
    _latest[:] = [weakref.ref(state)]
    _meet(state, handles_of(tf.nest.flatten(sources)))
    return state


def find_state(loss_scale: LossScale) -> ScaleState | None:
    """Return the state of a loss scale that gradients computed here use, if any.

    That is the one of the present strategy; where it has none, the one made last.
    """
    states = [state for state in states_here() if state.loss_scale is loss_scale]
    strategy = tf.distribute.get_strategy()
    of_strategy = [state for state in states if state.strategy is strategy]
    return next(reversed(of_strategy or states), None)


def states_here() -> list[ScaleState]:
    """Return all states that gradients computed here may have changed."""
    if graphs.is_exporting():
        return []
    with _lock:
        return list(_home().values())


def states_in_use() -> list[ScaleState]:
    """Return those of them whose weights are still there.

    A process may train one model after another, each with a loss scale of its own.
    """
    return [state for state in states_here() if not state.is_abandoned]


def eager_states() -> list[ScaleState]:
    """Return all states outside of graphs, which functions share."""
    with _lock:
        return list(_eager_states.values())


def states_of(graph: Any) -> list[ScaleState]:
    """Return all states in a `tf.Graph`."""
    states: _States = getattr(graph, _STATES, {})
    return list(states.values())


def latest_state() -> ScaleState | None:
    """Return the state that gradients were last scaled by, when they were traced."""
    return _latest[0]() if _latest else None


def _make(loss_scale: LossScale, strategy: Any, sources: Any) -> None:
    key = (id(loss_scale), id(strategy))
    weights = handles_of(tf.nest.flatten(sources))
    has_strategy, place = tf.distribute.has_strategy(), place_here()
    is_tracing = not tf.executing_eagerly()

    def make(device: str | None) -> ScaleState:
        with contextlib.ExitStack() as scopes:
            if has_strategy:
                scopes.enter_context(strategy.scope())
            else:
                scopes.enter_context(tf.device(None))
                scopes.enter_context(tf.device(device))
            return ScaleState(loss_scale, strategy, weights)

    with _lock, tf.init_scope():
        if key not in _home():
            is_eager = tf.executing_eagerly()
            in_reach = is_eager and not has_strategy
            made = functools.partial(make, _device(sources) if in_reach else place)
            _home()[key] = made_outside(made) if is_tracing and is_eager else made()


def _meet(state: ScaleState, weights: Handles) -> None:
    """Let a state go back to what was restored with weights that it sees first now."""
    new = {key: handle for key, handle in weights.items() if key not in state.weights}
    # In a `tf.Graph` nothing can be written without a Session.
    if new and not state.in_graph:
        values = restored_scales.resumed_with(new, state.loss_scale, state.fresh)
        if values is not None:
            made_outside(functools.partial(state.replace, values))
    state.add_weights(new)


def _device(sources: Any) -> str:
    """Return the device of most of the variables, else the one in whose scope this is.

    A thread of its own is in no scope.
    """
    handles = [getattr(source, "handle", None) for source in tf.nest.flatten(sources)]
    devices = [handle.device for handle in handles if handle is not None]
    counted = collections.Counter(device for device in devices if device)
    return counted.most_common(1)[0][0] if counted else str(tf.identity(0.0).device)


def _home() -> _States:
    """Return where the states of the outermost graph, or of eager execution, are."""
    with tf.init_scope():
        if tf.executing_eagerly():
            return _eager_states
        graph = tf.compat.v1.get_default_graph()
    states: _States = kept_with(graph, _STATES)
    return states


def _in_cross_replica_context(make: Callable[[], None]) -> None:
    """Call a function where the variables of all replicas can be made."""
    in_replica = not tf.distribute.in_cross_replica_context()
    # Where replicas cannot meet, `make` does its work in a thread that is of none.
    if not tf.distribute.has_strategy() or not in_replica or not can_merge():
        make()
        return
    context = tf.distribute.get_replica_context()
    context.merge_call(lambda strategy: make())
