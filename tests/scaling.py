"""Loss scaling by itself, in this process: no graph is rewritten."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_amp
from tf_amp import LossScale, loss_scale_state
from tf_amp import _tensorflow_private as private
from tf_amp.training import checkpoints, gradients


@contextlib.contextmanager
def scaled_by(loss_scale: LossScale) -> Iterator[LossScale]:
    """Scale the losses of all gradients taken inside."""
    # What another test has left in place would stay, with its own loss scale.
    private.remove()
    gradients.install(lambda: loss_scale)
    checkpoints.install()
    try:
        yield loss_scale
    finally:
        private.remove()


def figures(loss_scale: LossScale) -> tuple[float, int, int]:
    """Return scale, good steps and skipped steps."""
    state = loss_scale_state(loss_scale)
    return state.scale, state.good_steps, state.skipped_steps


def stepper(loss_scale: LossScale) -> Any:
    """Return a function that takes one gradient, finite or not, and returns it."""
    with scaled_by(loss_scale):

        @tf.function
        def step(factor: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(factor)
                loss = factor * factor
            return tape.gradient(loss, factor)

        step.get_concrete_function(tf.TensorSpec([], tf.float32))
    return step


def values_of(variables: Any) -> list[np.ndarray]:
    """Return copies of the values of variables."""
    return [np.array(v.numpy() if hasattr(v, "numpy") else v) for v in variables]


def are_equal(before: list[np.ndarray], after: list[np.ndarray]) -> bool:
    """Return whether all values are the same, bit by bit."""
    assert len(before) == len(after)
    return all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))


def clipped(x: Any) -> Any:
    """Return x, whose gradient is cut to 1 in true units."""

    @tf.custom_gradient
    def of(x: Any) -> Any:
        @tf_amp.in_true_units
        def slope(upstream: Any) -> Any:
            return tf.clip_by_value(upstream, -1.0, 1.0)

        return tf.identity(x), slope

    return of(x)
