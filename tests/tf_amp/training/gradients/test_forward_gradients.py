"""Forward accumulators compute what they do without loss scaling, and count nothing."""

import math

import numpy as np
import tensorflow as tf

from tests.scaling import figures, scaled_by
from tf_amp import DynamicLossScale

X = np.array([0.5, 2.0], np.float32)


def jvp(function, tangents, x=X):
    x = tf.constant(x)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(tangents, tf.float32)) as found:
        y = function(x)
    return found.jvp(y)


def test_infinities_stay_among_the_values_and_the_scale_stays():
    def function(x):
        return x**3 + 0.125

    plain = jvp(function, [math.inf, 0.25])
    with scaled_by(DynamicLossScale()) as loss_scale:
        scaled = jvp(lambda x: function(tf.sin(x) * 0.0 + x), [math.inf, 0.25])
        # Traced for the first time while losses are scaled.
        tan = jvp(tf.tan, [math.inf, 0.0])
        assert figures(loss_scale) == (1.0, 0, 0)
    np.testing.assert_array_equal(plain, [math.inf, 3.0])
    assert float(scaled[1]) == 3.0
    np.testing.assert_array_equal(tan, [math.inf, 0.0])


def test_what_is_traced_for_them_holds_on_to_no_loss_scale():
    from tensorflow.python.eager import forwardprop

    with scaled_by(DynamicLossScale()):
        jvp(tf.atan, [1.0, 1.0])
    traced = forwardprop._jvp_function_cache.values()
    assert not any(function.captured_inputs for function in traced)


def test_hessian_vector_products_are_those_without_scaling():
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x**3)
        return tape.gradient(y, x)

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        np.testing.assert_allclose(jvp(slope, [1.0, 2.0]), 6 * X * [1.0, 2.0], 1e-6)
        assert figures(loss_scale) == (2.0**10, 1, 0)
