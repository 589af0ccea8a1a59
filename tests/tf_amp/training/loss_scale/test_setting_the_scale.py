"""The loss scale in force is set from outside, between steps."""

import pytest
import tensorflow as tf

import tf_amp
from tests.scaling import scaled_by
from tf_amp.errors import ConfigError

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def step_of(traces):
    weight = tf.Variable([2.0])

    @tf.function
    def step(x):
        traces.append(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        return tape.gradient(loss, weight)

    return step


def test_the_next_steps_begin_with_it_and_nothing_is_traced_again():
    scale = tf_amp.DynamicLossScale(initial=4.0, growth_interval=3)
    traces = []
    with tf_amp.mixed_precision_scope(loss_scale=scale):
        step = step_of(traces)
        for _ in range(2):
            step(tf.constant([3.0]))
        assert tf_amp.loss_scale_state().good_steps == 2

        tf_amp.set_loss_scale(1024.0)
        state = tf_amp.loss_scale_state()
        assert (state.scale, state.good_steps) == (1024.0, 0)
        for expected in (1024.0, 1024.0, 2048.0):
            assert step(tf.constant([3.0])).numpy() == [3.0]
            assert tf_amp.loss_scale_state().scale == expected
        step(tf.constant([float("inf")]))
        tf_amp.set_loss_scale(2, scale)
    state = tf_amp.loss_scale_state()
    assert (state.scale, state.skipped_steps) == (2.0, 1)
    assert len(traces) == 1


def test_it_is_set_in_the_session_in_force():
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        with scaled_by(tf_amp.DynamicLossScale(initial=4.0)):
            weight = v1.get_variable("w", initializer=[2.0])
            (gradient,) = tf.gradients(3 * weight, weight)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            tf_amp.set_loss_scale(64.0)
            assert session.run(gradient) == [3.0]
            assert tf_amp.loss_scale_state().scale == 64.0
        with pytest.raises(ConfigError, match="pass the Session"):
            tf_amp.set_loss_scale(64.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1000.0, "nearest is 1024.0"),
        (0, "value=0; it must be above 0"),
        ("2", "it must be a number"),
        (2.0**11, "value=2048.0 lies outside of minimum=1.0 and maximum=1024.0"),
    ],
)
def test_a_scale_that_would_not_do_is_refused(value, words):
    scale = tf_amp.DynamicLossScale(initial=4.0, maximum=1024.0)
    with tf_amp.mixed_precision_scope(loss_scale=scale):
        step_of([])(tf.constant([3.0]))
    with pytest.raises(ConfigError, match=words):
        tf_amp.set_loss_scale(value)
    assert tf_amp.loss_scale_state().scale == 4.0


def test_only_a_dynamic_scale_that_has_scaled_something_can_be_set():
    with pytest.raises(ConfigError, match="no gradients have been scaled yet"):
        tf_amp.set_loss_scale(2.0, tf_amp.DynamicLossScale())
    with tf_amp.mixed_precision_scope(loss_scale=8.0):
        step_of([])(tf.constant([3.0]))
    with pytest.raises(ConfigError, match="StaticLossScale"):
        tf_amp.set_loss_scale(2.0)
