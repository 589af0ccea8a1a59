"""All gradients of one tape count once, however often it is asked for some."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import figures, scaled_by
from tf_amp import DynamicLossScale, StaticLossScale, loss_scale_state

X = np.linspace(0.5, 2.0, 4, dtype=np.float32)
BAD = X * np.float32(math.inf)

built = pytest.mark.parametrize(
    "build", [tf.function, lambda f: f], ids=["function", "eager"]
)


@built
def test_jacobians_and_gradients_of_one_tape_count_together(build):
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        return tape.jacobian(y, x), tape.gradient(y, x), tape.jacobian(y, x)

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        step = build(step)
        first, slope, second = step(tf.constant(X))
        assert figures(loss_scale) == (2.0**10, 1, 0)
        np.testing.assert_array_equal(first, np.diag(2 * X))
        np.testing.assert_array_equal(second, first)
        np.testing.assert_array_equal(slope, 2 * X)
        step(tf.constant(BAD))
        assert figures(loss_scale) == (2.0**9, 0, 1)


@pytest.mark.parametrize("is_resource", [True, False])
def test_steps_in_a_loop_of_a_graph_count_each(is_resource):
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        loss_scale = DynamicLossScale(initial=2.0**10)
        weight = v1.get_variable("w", [4], use_resource=is_resource)
        fed = v1.placeholder(tf.float32, [3, 4])

        def body(i, total):
            loss = tf.reduce_sum(weight * fed[i])
            # What optimizers ask for.
            source = weight.handle if is_resource else weight._ref()
            return i + 1, total + tf.gradients(loss, source)[0]

        with scaled_by(loss_scale):
            _, total = tf.while_loop(lambda i, _: i < 3, body, (0, tf.zeros([4])))
        session.run(v1.global_variables_initializer())
        batches = np.stack([X, X, X])
        np.testing.assert_array_equal(session.run(total, {fed: batches}), 3 * X)
        state = loss_scale_state(session=session)
        assert (state.scale, state.good_steps) == (2.0**10, 3)


@pytest.mark.parametrize(
    ("is_persistent", "resets", "counted"),
    [(False, False, 2), (False, True, 2), (True, True, 2), (True, False, 1)],
)
def test_a_tape_that_is_used_again_counts_anew_unless_it_keeps_what_it_recorded(
    is_persistent, resets, counted
):
    v, tape = tf.Variable(X), tf.GradientTape(persistent=is_persistent)

    def step(x):
        with tape:
            if resets:
                tape.reset()
            loss = tf.reduce_sum(v * x)
        return tape.gradient(loss, v)

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        for _ in range(2):
            np.testing.assert_array_equal(step(tf.constant(X)), X)
        assert figures(loss_scale) == (2.0**10, counted, 0)
        for _ in range(2):
            assert np.isinf(step(tf.constant(BAD))).all()
        assert figures(loss_scale) == (2.0 ** (10 - counted), 0, counted)


def test_two_loss_scales_of_one_tape_count_separately():
    first, second = StaticLossScale(4.0), StaticLossScale(8.0)

    @tf.function
    def step(x):
        with scaled_by(first), tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        for loss_scale in (first, second, first):
            with scaled_by(loss_scale):
                slope = tape.gradient(y, x)
        return slope

    np.testing.assert_array_equal(step(tf.constant(X)), 2 * X)
    assert figures(first) == (4.0, 1, 0)
    assert figures(second) == (8.0, 1, 0)
