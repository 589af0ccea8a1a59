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

from tf_amp._tensorflow_private import Hook, Method, wrapping_unconverted
from tf_amp._tensorflow_private import training as private
from tf_amp.training.optimizers.skipping import Step, take_unless_overflowed

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
            with tf.init_scope():
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

    def build_outside() -> None:
        with tf.init_scope():
            build(optimizer, variables)

    def call(gradients: list[Any]) -> Any:
        return apply(optimizer, _pairs(gradients, variables), *args, **kwargs)

    step = Step(optimizer, grads, variables, call, build_outside)
    return take_unless_overflowed(step)


@wrapping_unconverted
def _apply_tf_keras(apply: Apply, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    def build(optimizer: Any, variables: list[Any]) -> None:
        optimizer.build(variables)

    done = _apply_pairs(build, apply, optimizer, *args, **kwargs)
    silent = done is None or _is_operation_of_function(done)
    return optimizer.iterations if silent else done


@wrapping_unconverted
def _apply_legacy(apply: Apply, *args: Any, **kwargs: Any) -> Any:
    """Do so for Keras 2's first optimizers."""

    def build(optimizer: Any, variables: list[Any]) -> None:
        optimizer.iterations  # noqa: B018
        optimizer._create_all_weights(variables)

    return _apply_pairs(build, apply, *args, **kwargs)


@wrapping_unconverted
def _apply_v1(
    apply: Apply,
    optimizer: Any,
    grads_and_vars: Any,
    global_step: Any = None,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Do so for those of `tf.compat.v1.train`."""
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
