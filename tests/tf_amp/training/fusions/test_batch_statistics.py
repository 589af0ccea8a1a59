"""Keras 3's BatchNormalization trains by one kernel, and comes to the same."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tf_amp.training.fusions.test_fused_steps import assert_close, enabled

SHAPE = (8, 6, 5, 32)
KERNEL = "FusedBatchNormV3"
# Sums of 240 values in another order.
ROUNDING = 3e-5
Normalization = keras.layers.BatchNormalization


def numbers(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Return numbers around 3 that scatter by 2."""
    return np.random.default_rng(seed).normal(3.0, 2.0, shape).astype(np.float32)


class Training:
    """A layer, and a function that takes one step through it."""

    def __init__(
        self, make=Normalization, shape=SHAPE, dtype=None, compiled=None, **given
    ) -> None:
        """Build the layer with weights that are not its first ones."""
        self.shape = shape
        self.layer = make(dtype=dtype, **given)
        self.layer.build(shape)
        for seed, weight in enumerate(self.layer.trainable_variables):
            weight.assign(1.0 + 0.1 * numbers(seed, weight.shape))
        self.step = tf.function(self.take, autograph=False, jit_compile=compiled)

    def take(self, x, upstream):
        """Return outputs and gradients."""
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = self.layer(x, training=True)
        weights = [weight.value for weight in self.layer.trainable_variables]
        return y, *tape.gradient(y, [x, *weights], tf.cast(upstream, y.dtype))

    def run(self) -> list[np.ndarray]:
        """Take two steps; return results, gradients and moving averages."""
        results = []
        for seed in (1, 2):
            given = (numbers(seed, self.shape), numbers(seed + 2, self.shape))
            results += [
                # NumPy 1.26 compares no bfloat16.
                np.asarray(part).astype(np.float64)
                for part in self.step(*map(tf.constant, given))
            ]
        return [*results, *(np.asarray(v.value) for v in self.layer.variables)]

    @property
    def is_fused(self) -> bool:
        """Whether its function normalizes by a kernel."""
        spec = tf.TensorSpec(self.shape)
        graph = self.step.get_concrete_function(spec, spec).graph
        return KERNEL in {operation.type for operation in graph.get_operations()}


def both(**given) -> tuple[list[np.ndarray], list[np.ndarray], bool]:
    """Return what comes of a layer as Keras has it, and fused; whether it was."""
    with enabled(fuse="off"):
        plain = Training(**given)
        expected = plain.run()
        assert not plain.is_fused
    with enabled():
        fused = Training(**given)
        return expected, fused.run(), fused.is_fused


@pytest.mark.parametrize(
    "given",
    [{}, {"scale": False}, {"center": False}, {"axis": 3}, {"momentum": 0.5}],
    ids=str,
)
def test_outputs_gradients_and_averages_are_those_of_keras(given: dict) -> None:
    expected, fused, is_fused = both(**given)
    assert is_fused
    assert_close(expected, fused, ROUNDING)


class ByItself(Normalization):
    """Takes moments of its own."""

    def _moments(self, inputs, mask):
        mean, variance = super()._moments(inputs, mask)
        return mean, 2.0 * variance


@pytest.mark.parametrize(
    "given",
    [
        {"axis": 1},
        {"shape": (8, 32)},
        {"shape": (8, 6, 32)},
        {"shape": (8, 4, 3, 2, 16)},
        {"dtype": "mixed_bfloat16"},
        {"dtype": "float64"},
        {"synchronized": True},
        {"epsilon": 1e-6},
        {"trainable": False},
        {"make": ByItself},
        {"compiled": True},
    ],
    ids=str,
)
def test_what_the_kernel_does_not_do_is_left_as_it_is(given: dict) -> None:
    expected, same, is_fused = both(**given)
    assert not is_fused
    assert_close(expected, same, 0.0)


def test_a_mask_and_inference_are_left_as_they_are() -> None:
    with enabled():
        layer = Normalization()
        x = tf.constant(numbers(0))
        layer.build(SHAPE)

        @tf.function
        def call(x):
            mask = tf.ones(SHAPE[:3], tf.bool)
            return layer(x, training=True, mask=mask), layer(x, training=False)

        ops = {op.type for op in call.get_concrete_function(x).graph.get_operations()}
        assert KERNEL not in ops


def test_one_image_of_one_pixel_has_no_variance() -> None:
    expected, fused, is_fused = both(shape=(1, 1, 1, 32))
    assert is_fused
    assert_close(expected, fused, ROUNDING)


def test_batches_of_any_size_are_fused() -> None:
    with enabled():
        training = Training()
        training.step = tf.function(
            training.take, input_signature=[tf.TensorSpec((None, None, None, 32))] * 2
        )
        fused = training.run()
    with enabled(fuse="off"):
        assert_close(Training().run(), fused, ROUNDING)


def test_gradients_of_gradients_are_those_of_keras() -> None:
    results = []
    for fuse in ("off", "on"):
        with enabled(fuse=fuse):
            layer = Training().layer
            x, seed = tf.constant(numbers(1)), tf.constant(numbers(2))
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    y = tf.reduce_sum(layer(x, training=True) ** 3 * seed)
                slope = tf.reduce_sum(inner.gradient(y, x) ** 2)
            results.append([np.asarray(outer.gradient(slope, x))])
    assert_close(*results, 1e-3)
