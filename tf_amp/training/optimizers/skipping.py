"""One step of an optimizer, taken in a branch of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.annotations import FINITE_BRANCH
from tf_amp._tensorflow_private import training as private
from tf_amp.tracing import bypass
from tf_amp.training.optimizers.finite_steps import finite_step

# Holds something as soon as an optimizer was asked to apply gradients.
_applied: list[bool] = []


class Step(NamedTuple):
    """What an optimizer was asked to do.

    Attributes:
      optimizer: that was asked.
      grads: to be applied; None among them stays None.
      variables: to which; none where the optimizer knows them.
      call: applies gradients.
      build: makes the variables of the optimizer, which no branch may do.
      call_in_branch: the same as `call`, by default itself.
      name: of the operation that is returned.
    """

    optimizer: Any
    grads: list[Any]
    variables: list[Any]
    call: Callable[[list[Any]], Any]
    build: Callable[[], None]
    call_in_branch: Callable[[list[Any]], Any] | None = None
    name: str = "apply_if_finite"

    def take(self, grads: list[Any]) -> Any:
        """Apply gradients, which are known to be finite."""
        in_graph = not tf.executing_eagerly()
        call = (self.call_in_branch if in_graph else None) or self.call
        # Some optimizers hand on to others.
        with bypass.taking_all():
            return call(grads)


def have_applied() -> bool:
    """Return whether an optimizer was asked to apply gradients, not by hand."""
    return bool(_applied)


def take_unless_overflowed(step: Step) -> Any:
    """Apply gradients if those they come from were finite.

    Returns:
      What `step.call` does where nothing can overflow, or where execution is eager;
      else an operation.
    """
    _applied[:] = [True]
    if bypass.takes_all():
        return step.call(step.grads)
    finite = finite_step(step.grads, step.variables, step.optimizer)
    if finite is None:
        return step.call(step.grads)
    if isinstance(finite, bool):
        return step.take(step.grads) if finite else None
    step.build()
    if _merges():
        return _in_all_replicas(finite, step)
    return _when(finite, lambda: step.take(step.grads), step.name)


def _merges() -> bool:
    """Return whether replicas have to meet before they can branch."""
    if not tf.distribute.has_strategy() or tf.distribute.in_cross_replica_context():
        return False
    return not tf.__internal__.distribute.strategy_supports_no_merge_call()


def _in_all_replicas(finite: Any, step: Step) -> Any:
    """Apply in every replica, if gradients are finite in all of them.

    Optimizers let their replicas meet, which they cannot within a branch of their own:
    so they meet first, branch together, and part again.
    """

    def meet(strategy: Any, finite_in_each: Any, *grads: Any) -> Any:
        flags = strategy.experimental_local_results(finite_in_each)
        together = tf.reduce_all(tf.stack(flags))

        def part() -> None:
            # What replicas do together they do in this thread.
            with bypass.taking_all():
                strategy.extended.call_for_each_replica(apart, args=grads)

        return _when(together, part, step.name)

    def apart(*grads: Any) -> None:
        step.take(list(grads))

    context = tf.distribute.get_replica_context()
    return context.merge_call(meet, args=(finite, *step.grads))


def _when(finite: Any, act: Callable[[], Any], name: str) -> Any:
    """Do something in a branch; return the operation that does."""

    def acted() -> Any:
        done = act()
        is_node = isinstance(done, (tf.Operation, tf.Tensor))
        with tf.control_dependencies([done] if is_node else []):
            return tf.constant(True)

    before = _train_operations()
    with private.branching_on_references():
        taken = tf.cond(finite, acted, lambda: tf.constant(False), name=FINITE_BRANCH)
    operation = tf.group(taken, name=name)
    _stand_for_new(operation, before)
    return operation


def _stand_for_new(operation: Any, before: list[Any]) -> None:
    """Let an operation train, not those of its branch, which were not there before."""
    after = _train_operations()
    kept = [other for other in after if any(other is one for one in before)]
    if len(kept) == len(after):
        return
    collection = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    collection[:] = [*kept, operation]


def _train_operations() -> list[Any]:
    return list(tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.TRAIN_OP))
