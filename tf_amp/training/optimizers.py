"""Steps of optimizers that are skipped as if they had never been tried.

Decorates where every optimizer applies gradients: of Keras 3, of tf_keras, new and
legacy, of the Keras within TensorFlow, and of `tf.compat.v1`. Where gradients come from
a call that overflowed, however they were clipped, summed or averaged since, nothing is
applied: no variable, slot, average or step counter changes. A step is taken in a branch
of its own.

Under a `SyncReplicasOptimizer` each worker pushes its gradients to accumulators, and
then waits for a token, which it gets once enough gradients of this step are there and
have been applied. A worker whose gradients overflow must not push. But did it wait all
the same, all would: no other fills its place. So it puts a token for the present step
back into the queue, to be had by whichever waits first, and this one computes gradients
for the step once more. Nothing is branched on there: accumulators drop the gradients of
a step gone by, which is what an overflowing worker says of its own, and a queue takes
none of no tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.annotations import FINITE_BRANCH
from tf_amp._tensorflow_private import (
    Hook,
    Method,
    stand_in_for,
    wrapping_unconverted,
)
from tf_amp._tensorflow_private import install as install_hooks
from tf_amp._tensorflow_private import training as private
from tf_amp.tracing import stack
from tf_amp.tracing.stack import holding
from tf_amp.training.finite_steps import finite_step

Apply = Callable[..., Any]


@wrapping_unconverted
def _apply_keras(
    apply: Apply,
    optimizer: Any,
    grads: Any,
    trainable_variables: Any = None,
    **kwargs: Any,
) -> Any:
    """Do what Keras 3's `apply` does, with overflows skipped."""
    variables = None if trainable_variables is None else list(trainable_variables)

    def build() -> None:
        if not optimizer.built and variables is not None:
            optimizer.build(variables)

    def call(gradients: list[Any]) -> Any:
        return apply(optimizer, gradients, variables, **kwargs)

    step = Step(optimizer, list(grads), variables or [], call, build)
    done = take_unless_overflowed(step)
    # Branches of the program's own would have to agree on what they return.
    return None if _is_operation_of_function(done) else done


def _apply_pairs(
    build: Callable[[Any, list[Any]], None],
    apply: Apply,
    optimizer: Any,
    grads_and_vars: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Do what an `apply_gradients(grads_and_vars, ...)` does, with overflows skipped.

    `build` makes the variables of an optimizer for those that it is to change.
    """
    grads, variables = _split(grads_and_vars)

    def call(gradients: list[Any]) -> Any:
        return apply(optimizer, _pairs(gradients, variables), *args, **kwargs)

    build_here = functools.partial(build, optimizer, variables)
    return take_unless_overflowed(Step(optimizer, grads, variables, call, build_here))


@wrapping_unconverted
def _apply_tf_keras(apply: Apply, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Do what `apply_gradients` of Keras 2's optimizers does, in the same way."""

    def build(optimizer: Any, variables: list[Any]) -> None:
        optimizer.build(variables)

    done = _apply_pairs(build, apply, optimizer, *args, **kwargs)
    silent = done is None or _is_operation_of_function(done)
    return optimizer.iterations if silent else done


def _build_legacy(optimizer: Any, variables: list[Any]) -> None:
    optimizer.iterations  # noqa: B018
    optimizer._create_all_weights(variables)


# Of Keras 2's first optimizers.
_apply_legacy = wrapping_unconverted(functools.partial(_apply_pairs, _build_legacy))


@wrapping_unconverted
def _apply_v1(
    apply: Apply,
    optimizer: Any,
    grads_and_vars: Any,
    global_step: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Do what `apply_gradients` in `tf.compat.v1.train` does, in the same way."""
    grads, variables = _split(grads_and_vars)

    def build() -> None:
        used = [v for g, v in zip(grads, variables, strict=True) if g is not None]
        optimizer._create_slots(used)

    def call_named(name: str | None, gradients: list[Any]) -> Any:
        pairs = _pairs(gradients, variables)
        return apply(optimizer, pairs, global_step, name, **kwargs)

    call = functools.partial(call_named, name)
    # The name goes to the operation that the program receives.
    in_branch = functools.partial(call_named, None)
    named = name or optimizer.get_name()
    return take_unless_overflowed(
        Step(optimizer, grads, variables, call, build, in_branch, named)
    )


HOOKS: dict[Hook, Callable[[Method], Method]] = {
    private.KERAS_APPLY: _apply_keras,
    private.KERAS_MULTI_APPLY: _apply_keras,
    private.TF_KERAS_APPLY: _apply_tf_keras,
    private.TF_KERAS_LEGACY_APPLY: _apply_legacy,
    private.INNER_KERAS_APPLY: _apply_legacy,
    private.V1_APPLY: _apply_v1,
}


def _is_operation_of_function(done: Any) -> bool:
    return isinstance(done, tf.Operation) and bool(done.graph.building_function)


def _split(grads_and_vars: Any) -> tuple[list[Any], list[Any]]:
    pairs = list(grads_and_vars)
    return [g for g, _ in pairs], [v for _, v in pairs]


def _pairs(grads: list[Any], variables: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(grads, variables, strict=True))


# Holds something as soon as an optimizer was asked to apply gradients.
_applied: list[bool] = []


class Step(NamedTuple):
    """What an optimizer was asked to do.

    Attributes:
      optimizer: that was asked.
      grads: to be applied; None among them stays None.
      variables: to which; none where the optimizer knows them.
      call: applies gradients.
      build: makes the variables of the optimizer, outside of functions and branches.
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
        with stack.taking_all():
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
    if stack.takes_all():
        return step.call(step.grads)
    finite = finite_step(step.grads, step.variables, step.optimizer)
    if finite is None:
        return step.call(step.grads)
    if isinstance(finite, bool):
        return step.take(step.grads) if finite else None
    with tf.init_scope():
        step.build()
    if tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context():
        # Replicas may have to meet before they can branch.
        if not tf.__internal__.distribute.strategy_supports_no_merge_call():
            return _in_all_replicas(finite, step)
    return _when(finite, lambda: step.take(step.grads), step.name)


def _in_all_replicas(finite: Any, step: Step) -> Any:
    """Apply in every replica, if gradients are finite in all of them.

    Optimizers let their replicas meet, which they cannot within a branch of their own:
    so they meet first, branch together, and part again.
    """

    def meet(strategy: Any, finite_in_each: Any, *grads: Any) -> Any:
        flags = strategy.experimental_local_results(finite_in_each)
        together = tf.reduce_all(tf.stack(flags))

        def apart(*grads: Any) -> None:
            step.take(list(grads))

        def part() -> None:
            # What replicas do together they do in this thread.
            with stack.taking_all():
                strategy.extended.call_for_each_replica(apart, args=grads)

        return _when(together, part, step.name)

    context = tf.distribute.get_replica_context()
    return context.merge_call(meet, args=(finite, *step.grads))


def _when(finite: Any, act: Callable[[], Any], name: str) -> Any:
    """Do something in a branch; return the operation that does."""

    def acted() -> Any:
        done = act()
        is_node = isinstance(done, (tf.Operation, tf.Tensor))
        with tf.control_dependencies([done] if is_node else []):
            return tf.constant(True)

    key = tf.compat.v1.GraphKeys.TRAIN_OP
    before = tf.compat.v1.get_collection(key)
    with private.branching_on_references():
        taken = tf.cond(finite, acted, lambda: tf.constant(False), name=FINITE_BRANCH)
    operation = tf.group(taken, name=name)
    # It trains, not those of its branch, which were not there before.
    after = tf.compat.v1.get_collection(key)
    kept = [other for other in after if any(other is one for one in before)]
    if len(kept) < len(after):
        tf.compat.v1.get_collection_ref(key)[:] = [*kept, operation]
    return operation


# Whether the gradients that a worker is about to push are finite, a bool scalar, and
# the `SyncReplicasOptimizer` that they are for.
_push: ContextVar[tuple[Any, Any] | None] = ContextVar("tf_amp_push", default=None)


def install() -> None:
    """Decorate where a `SyncReplicasOptimizer` pushes, and where it waits."""
    if install_hooks({private.SYNC_PARTS: _with_guarded_parts}):
        install_hooks({private.SYNC_APPLY: _note_overflow})


@wrapping_unconverted
def _note_overflow(
    apply: Apply, optimizer: Any, grads_and_vars: Any, *args: Any, **kwargs: Any
) -> Any:
    pairs = list(grads_and_vars)
    finite = finite_step(*_split(pairs))
    push = (finite, optimizer) if isinstance(finite, tf.Tensor) else None
    with holding(_push, push):
        return apply(optimizer, pairs, *args, **kwargs)


def _with_guarded_parts(module: Any) -> Any:
    """Return `data_flow_ops` with accumulators and a queue that look at the push."""

    def guarded(kind: Any) -> Any:
        class Accumulator(kind):  # type: ignore[misc]
            def apply_grad(self, *args: Any, local_step: Any = 0, **kwargs: Any) -> Any:
                if push := _push.get():
                    # What overflowed is said to be of a step before all others.
                    step = tf.cast(local_step, tf.int64)
                    local_step = tf.where(push[0], step, tf.constant(-1, tf.int64))
                return super().apply_grad(*args, local_step=local_step, **kwargs)

        return Accumulator

    class TokenQueue(module.FIFOQueue):  # type: ignore[misc]
        def dequeue(self, name: Any = None) -> Any:
            finite, optimizer = _push.get() or (None, None)
            step = None if optimizer is None else private.local_step_of(optimizer)
            if step is None:
                return super().dequeue(name)
            # Where gradients overflowed, a token goes back.
            count = 1 - tf.cast(finite, tf.int32)
            tokens = tf.fill([count], tf.identity(step))
            with tf.control_dependencies([self.enqueue_many((tokens,))]):
                return super().dequeue(name)

    kinds = "ConditionalAccumulator", "SparseConditionalAccumulator"
    accumulators = {name: guarded(getattr(module, name)) for name in kinds}
    return stand_in_for(module, **accumulators, FIFOQueue=TokenQueue)
