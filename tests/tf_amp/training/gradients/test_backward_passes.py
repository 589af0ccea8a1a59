"""Backward passes that are traced when a function is called, before they are asked for.

Gradients asked for within start from scaled ones, whenever these come.
"""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import figures, scaled_by
from tf_amp import StaticLossScale

X = np.array([0.5, -3.0, 2.0], np.float32)


def recomputing(x):
    for _ in range(2):
        x = tf.recompute_grad(tf.tanh)(x)
    return x


@tf.custom_gradient
def with_a_function_of_its_own(x):
    @tf.function
    def slope(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(tf.tanh(x))
        return tape.gradient(y, x, output_gradients=upstream)

    return tf.tanh(tf.tanh(x)), lambda upstream: slope(x, upstream)


def of_a_call(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(layer)(x)
    return tape.gradient(y, x)


def in_a_function(layer, x):
    @tf.function
    def slopes(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.function(layer)(x)
        return tape.gradient(y, x)

    return slopes(x)


@pytest.mark.parametrize("ask", [of_a_call, in_a_function])
@pytest.mark.parametrize("layer", [recomputing, with_a_function_of_its_own])
def test_what_a_backward_pass_recomputes_is_scaled_and_counted_once(layer, ask):
    expected = ask(layer, tf.constant(X))
    with scaled_by(StaticLossScale(2.0**64)) as loss_scale:
        np.testing.assert_array_equal(ask(layer, tf.constant(X)), expected)
        assert figures(loss_scale) == (2.0**64, 1, 0)
        ask(layer, tf.constant(X * np.float32(math.nan)))
        assert figures(loss_scale) == (2.0**64, 0, 1)
