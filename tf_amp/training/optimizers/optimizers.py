"""Steps that are skipped as if they had never been tried.

Decorates where every optimizer applies gradients: of Keras 3, of tf_keras, new and
legacy, of the Keras within TensorFlow, and of `tf.compat.v1`. Where gradients come from
a call that overflowed, however they were clipped, summed or averaged since, nothing is
applied: no variable, slot, average or step counter changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import Hook
from tf_amp._tensorflow_private import training as private
from tf_amp.training.optimizers.skipping import Step, take_unless_overflowed

Apply = Callable[..., Any]
Build = Callable[[Any, list[Any], list[Any]], None]


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

        step = Step(optimizer, grads, variables or [], call, build)
        done = take_unless_overflowed(step)
        # Branches of the program's own would have to agree on what they return.
        return None if _is_operation_of_function(done) else done

    return apply_if_finite


def skipping_tf_keras(apply: Apply) -> Apply:
    """Return tf_keras' `apply_gradients` with overflows skipped."""

    def build(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        optimizer.build(variables)

    skipping = _skipping_pairs(apply, build)

    @private.unconverted
    @functools.wraps(apply)
    def apply_if_finite(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        done = skipping(optimizer, *args, **kwargs)
        silent = done is None or _is_operation_of_function(done)
        return optimizer.iterations if silent else done

    return apply_if_finite


def skipping_legacy(apply: Apply) -> Apply:
    """Return `apply_gradients` of Keras 2's first optimizers with overflows skipped."""

    def build(optimizer: Any, grads: list[Any], variables: list[Any]) -> None:
        optimizer.iterations  # noqa: B018
        optimizer._create_all_weights(variables)

    return _skipping_pairs(apply, build)


def skipping_v1(apply: Apply) -> Apply:
    """Return `apply_gradients` of `tf.compat.v1.train` with overflows skipped."""

    @private.unconverted
    @functools.wraps(apply)
    def apply_if_finite(
        optimizer: Any,
        grads_and_vars: Any,
        global_step: Any = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> Any:
        grads, variables = _split(grads_and_vars)

        def build() -> None:
            used = [v for g, v in zip(grads, variables, strict=True) if g is not None]
            with tf.init_scope():
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

    return apply_if_finite


def _skipping_pairs(apply: Apply, build: Build) -> Apply:
    """Return an `apply_gradients(grads_and_vars, ...)` with overflows skipped."""

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

        step = Step(optimizer, grads, variables, call, build_outside)
        return take_unless_overflowed(step)

    return apply_if_finite


HOOKS: dict[Hook, Callable[[Apply], Apply]] = {
    private.KERAS_APPLY: skipping_keras,
    private.KERAS_MULTI_APPLY: skipping_keras,
    private.TF_KERAS_APPLY: skipping_tf_keras,
    private.TF_KERAS_LEGACY_APPLY: skipping_legacy,
    private.INNER_KERAS_APPLY: skipping_legacy,
    private.V1_APPLY: skipping_v1,
}


def _is_operation_of_function(done: Any) -> bool:
    return isinstance(done, tf.Operation) and bool(done.graph.building_function)


def _split(grads_and_vars: Any) -> tuple[list[Any], list[Any]]:
    pairs = list(grads_and_vars)
    return [g for g, _ in pairs], [v for _, v in pairs]


def _pairs(grads: list[Any], variables: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(grads, variables, strict=True))
