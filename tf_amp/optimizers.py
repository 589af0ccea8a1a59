"""Steps that are skipped as if they had never been tried.

Decorates where every optimizer applies gradients: of Keras 3, of tf_keras, new and
legacy, and of `tf.compat.v1`. Where gradients come from a call that overflowed, however
they were clipped, summed or averaged since, nothing is applied: no variable, slot,
average or step counter changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_amp import _tensorflow_private_training as private
from tf_amp import finite_branches, votes
from tf_amp._tensorflow_private import Hook
from tf_amp.finiteness import is_scalable
from tf_amp.loss_scaling.variables import states_here

Apply = Callable[..., Any]

# Holds something as soon as an optimizer was asked to apply gradients.
_applied: list[bool] = []


def skipping_keras(apply: Apply) -> Apply:
    """Return Keras' `apply(grads, trainable_variables)` with overflows skipped."""

    @private.unconverted
    @functools.wraps(apply)
    def apply_if_finite(
        optimizer: Any, grads: Any, trainable_variables: Any = None, **kwargs: Any
    ) -> Any:
        grads = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)

        def build() -> None:
            if not optimizer.built and variables is not None:
                with tf.init_scope():
                    optimizer.build(variables)

        def call(gradients: list[Any]) -> Any:
            return apply(optimizer, gradients, variables, **kwargs)

        return _unless_overflowed(grads, call, build)

    return apply_if_finite


def skipping_tf_keras(apply: Apply) -> Apply:
    """Return tf_keras' `apply_gradients` with overflows skipped."""

    def build(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        optimizer.build(variables)

    return _skipping_pairs(apply, build, lambda optimizer: optimizer.iterations)


def skipping_legacy(apply: Apply) -> Apply:
    """Return a legacy tf_keras `apply_gradients` with overflows skipped."""

    def build(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        optimizer.iterations  # noqa: B018
        optimizer._create_all_weights(variables)

    return _skipping_pairs(apply, build)


def skipping_v1(apply: Apply) -> Apply:
    """Return `apply_gradients` of `tf.compat.v1.train` with overflows skipped."""

    def build(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        used = [v for g, v in zip(grads, variables, strict=True) if g is not None]
        optimizer._create_slots(used)

    return _skipping_pairs(apply, build)


def _skipping_pairs(
    apply: Apply,
    build: Callable[[Any, list[Any], list[Any]], None],
    done_if_silent: Callable[[Any], Any] = lambda optimizer: None,
) -> Apply:
    """Return an `apply_gradients(grads_and_vars, ...)` with overflows skipped.

    Args:
      apply: the method as it was.
      build: makes the variables of an optimizer for gradients and variables.
      done_if_silent: what is returned where nothing else is.
    """

    @private.unconverted
    @functools.wraps(apply)
    def apply_if_finite(
        optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
    ) -> Any:
        grads, variables = _split(grads_and_vars)

        def build_outside() -> None:
            with tf.init_scope():
                build(optimizer, grads, variables)

        def call(gradients: list[Any]) -> Any:
            return apply(optimizer, _pairs(gradients, variables), *args, **kwargs)

        done = _unless_overflowed(grads, call, build_outside)
        return done_if_silent(optimizer) if done is None else done

    return apply_if_finite


def have_applied() -> bool:
    """Tell whether an optimizer was asked to apply gradients, not by hand."""
    return bool(_applied)


HOOKS: dict[Hook, Callable[[Apply], Apply]] = {
    private.KERAS_APPLY: skipping_keras,
    private.TF_KERAS_APPLY: skipping_tf_keras,
    private.TF_KERAS_LEGACY_APPLY: skipping_legacy,
    private.V1_APPLY: skipping_v1,
}


def _unless_overflowed(
    grads: list[Any], call: Callable[[list[Any]], Any], build: Callable[[], None]
) -> Any:
    """Apply gradients if those they come from were finite.

    Args:
      grads: None among them stays None.
      call: applies.
      build: makes the variables of the optimizer, which no branch may do.

    Returns:
      What `call` does where nothing can overflow, or where execution is eager; an
      operation in a `tf.Graph`; else None.
    """
    _applied[:] = [True]
    finite = finite_step(grads)
    if finite is None:
        return call(grads)
    if isinstance(finite, bool):
        return call(grads) if finite else None
    build()
    grads = [votes.as_computed(gradient) for gradient in grads]
    if _merges():
        return _in_all_replicas(finite, grads, call)
    return _when(finite, lambda: call(grads))


def finite_step(grads: Sequence[Any]) -> Any:
    """Return whether a step is to be taken: a bool, a tensor, or None for surely."""
    parts = tf.nest.flatten([_values(g) for g in grads if g is not None])
    parts = [part for part in parts if is_scalable(part)]
    if not parts:
        return None
    found = votes.ancestry_of(parts)
    flags = [vote.finite for vote in _as_one_step(found.votes)]
    states = [state for state in states_here() if _can_be_read(state)]
    if tf.executing_eagerly():
        overflowed = any(not bool(state.is_finite()) for state in states)
        return not (overflowed and not bool(_any_nonzero(parts)))
    if found.open_ended and states:
        flags.append(_finite_elsewhere(states, parts))
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


def _as_one_step(found: Sequence[votes.Vote]) -> Sequence[votes.Vote]:
    """Let the towers of one step in a `tf.Graph` change the loss scale together."""
    waiting = [vote for vote in found if vote.settled is not None]
    if len(waiting) < 2:
        return found
    together = tf.reduce_all(tf.stack([vote.own for vote in waiting]))
    settlements = {id(v.settlement.state): v.settlement for v in waiting}
    adjusted = [op for one in settlements.values() for op in one.settle(together)]
    for vote in waiting:
        private.wait_instead(vote.settled, vote.adjusting, adjusted)
    return found


def _finite_elsewhere(states: Sequence[Any], parts: Sequence[Any]) -> Any:
    """Tell whether gradients that came from another function were finite.

    An overflow was noted in the state, and has left nothing but zeros.
    """
    finite = tf.reduce_all(tf.stack([state.is_finite() for state in states]))
    return tf.cond(finite, lambda: tf.constant(True), lambda: _any_nonzero(parts))


def _any_nonzero(parts: Sequence[Any]) -> Any:
    zero = [tf.reduce_any(tf.not_equal(part, tf.zeros_like(part))) for part in parts]
    return tf.reduce_any(tf.stack(zero))


def _merges() -> bool:
    """Tell whether replicas have to meet before they can branch."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return False
    return not tf.__internal__.distribute.strategy_supports_no_merge_call()


def _in_all_replicas(finite: Any, grads: list[Any], call: Apply) -> None:
    """Apply in every replica, if gradients are finite in all of them.

    Optimizers let their replicas meet, which they cannot within a branch of their own:
    so they meet first, branch together, and part again.
    """
    places = [i for i, gradient in enumerate(grads) if gradient is not None]

    def call_with(*given: Any) -> None:
        gradients: list[Any] = [None] * len(grads)
        for i, gradient in zip(places, given, strict=True):
            gradients[i] = gradient
        call(gradients)

    def meet(strategy: Any, finite_in_each: Any, *given: Any) -> None:
        flags = strategy.experimental_local_results(finite_in_each)
        together = tf.reduce_all(tf.stack(flags))

        def part() -> None:
            strategy.extended.call_for_each_replica(call_with, args=given)

        _when(together, part)

    context = tf.distribute.get_replica_context()
    context.merge_call(meet, args=(finite, *(grads[i] for i in places)))


def _when(finite: Any, act: Callable[[], Any]) -> Any:
    """Do something in a branch; return its operation in a `tf.Graph`, else None."""

    def acted() -> Any:
        done = act()
        graph_mode = not tf.executing_eagerly()
        with tf.control_dependencies([done] if _is_node(done) and graph_mode else []):
            return tf.constant(True)

    with private.branching_on_references():
        taken = tf.cond(
            finite, acted, lambda: tf.constant(False), name=finite_branches.NAME
        )
    if tf.executing_eagerly() or tf.compat.v1.get_default_graph().building_function:
        return None
    return tf.group(taken, name="apply_if_finite")


def _is_node(value: Any) -> bool:
    return isinstance(value, (tf.Operation, tf.Tensor))


def _split(grads_and_vars: Any) -> tuple[list[Any], list[Any]]:
    pairs = list(grads_and_vars)
    return [g for g, _ in pairs], [v for _, v in pairs]


def _pairs(grads: list[Any], variables: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(grads, variables, strict=True))


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
