"""Gradients through `tf.py_function` are scaled and counted once."""

import math

import keras
import numpy as np
import tensorflow as tf

from tests.scaling import are_equal, figures, scaled_by, values_of
from tests.tf_amp.training.optimizers.test_exact_skip_in_graphs import a_graph
from tf_amp import DynamicLossScale, loss_scale_state

v1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


def root(x):
    y = tf.py_function(lambda value: tf.sqrt(value), [x**2], tf.float32)
    y.set_shape(x.shape)
    return y


def test_a_step_that_overflows_in_python_is_skipped():
    variables = [tf.Variable(tf.ones([4, 1])), tf.Variable(tf.ones([1]))]
    optimizer = keras.optimizers.SGD(0.1)
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(root(x @ variables[0]) + variables[1])
            optimizer.apply(tape.gradient(loss, variables), variables)

        step(tf.constant(X))
        assert figures(loss_scale) == (2.0**10, 1, 0)
        before = values_of([*variables, optimizer.iterations])
        # The root has an infinite slope at zero.
        step(tf.constant(0 * X))
        assert are_equal(before, values_of([*variables, optimizer.iterations]))
        assert figures(loss_scale) == (2.0**9, 0, 1)
        step(tf.constant(X))
        assert not are_equal(before, values_of([*variables, optimizer.iterations]))


def test_eager_gradients_through_python_are_scaled_once():
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(root(x))
        return tape.gradient(y, x)

    plain = slope(tf.constant(X)).numpy()
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        np.testing.assert_array_equal(slope(tf.constant(X)), plain)
        assert figures(loss_scale) == (2.0**10, 1, 0)
        assert np.isnan(slope(tf.constant(0 * X))).all()
        assert figures(loss_scale) == (2.0**9, 0, 1)


def test_gradients_through_python_are_scaled_once_in_a_session():
    with a_graph(DynamicLossScale(initial=2.0**10)), v1.Session() as session:
        x = v1.placeholder(tf.float32, [16, 4])
        (slope,) = tf.gradients(tf.reduce_sum(root(x)), x)
        np.testing.assert_allclose(session.run(slope, {x: X}), np.sign(X), rtol=1e-6)
        state = loss_scale_state(session=session)
        assert (state.scale, state.good_steps, state.skipped_steps) == (2.0**10, 1, 0)
        assert np.isnan(session.run(slope, {x: X * np.float32(math.inf)})).all()
        assert loss_scale_state(session=session).skipped_steps == 1


def test_gradients_that_python_asks_for_itself_are_its_own():
    def slope_in_python(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            y = value * value
        return tape.gradient(y, value)

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        compute = tf.function(
            lambda x: tf.py_function(slope_in_python, [x], tf.float32)
        )
        np.testing.assert_array_equal(compute(tf.constant(X)), 2 * X)
        assert figures(loss_scale) == (2.0**10, 1, 0)
