"""Custom gradients that are not linear can ask for gradients in true units."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.scaling import scaled_by
from tf_amp import ConfigError, DynamicLossScale

X = np.array([0.5, -3.0, 2.0, 0.25], np.float32)


def clipping(decorate):
    @tf.custom_gradient
    def clipped(x):
        @decorate
        def slope(upstream):
            return tf.clip_by_value(upstream, -1.0, 1.0)

        return tf.identity(x), slope

    return clipped


def by_tape(layer, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(x) ** 2)
    return tape.gradient(loss, x)


def by_tf_gradients(layer, x):
    return tf.gradients(tf.reduce_sum(layer(x) ** 2), x)[0]


def of_a_function(layer, x):
    return by_tape(tf.function(layer), x)


EXPECTED = np.clip(2 * X, -1.0, 1.0)


@pytest.mark.parametrize("way", [by_tape, by_tf_gradients, of_a_function])
def test_a_gradient_that_clips_is_right_in_true_units(way):
    def slope(decorate):
        return tf.function(lambda x: way(clipping(decorate), x))(tf.constant(X)).numpy()

    np.testing.assert_array_equal(slope(lambda function: function), EXPECTED)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        np.testing.assert_array_equal(slope(tf_amp.in_true_units), EXPECTED)
        # As documented: it clips what is multiplied by the scale.
        wrong = slope(lambda function: function)
    np.testing.assert_array_equal(wrong, np.sign(X) / 2.0**10)


def test_it_is_right_under_eager_execution_too_and_without_scaling():
    layer = clipping(tf_amp.in_true_units)
    np.testing.assert_array_equal(by_tape(layer, tf.constant(X)), EXPECTED)
    with scaled_by(DynamicLossScale()):
        np.testing.assert_array_equal(by_tape(layer, tf.constant(X)), EXPECTED)


def test_only_functions_can_be_decorated():
    with pytest.raises(ConfigError, match="received 3"):
        tf_amp.in_true_units(3)
