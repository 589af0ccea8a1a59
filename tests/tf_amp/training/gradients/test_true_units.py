"""Custom gradients that are not linear can ask for gradients in true units."""

import contextlib
import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.scaling import figures, scaled_by
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


def of_branches(layer, x):
    def outer():
        return tf.cond(x[1] < 0.0, lambda: layer(x), lambda: x)

    y = tf.cond(x[0] > 0.0, outer, lambda: x)
    return tf.gradients(tf.reduce_sum(y**2), x)[0]


def of_a_branch_in_a_loop(layer, x):
    def body(i, y):
        return i + 1, tf.cond(y[0] > 0.0, lambda: layer(y), lambda: y)

    _, y = tf.while_loop(lambda i, _: i < 1, body, (0, x))
    return tf.gradients(tf.reduce_sum(y**2), x)[0]


EXPECTED = np.clip(2 * X, -1.0, 1.0)


WAYS = [by_tape, by_tf_gradients, of_a_function, of_branches, of_a_branch_in_a_loop]


@pytest.mark.parametrize("way", WAYS)
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


def one_after_the_other(layer, x, factor):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        first = tf.reduce_sum(factor * x)
        second = tf.reduce_sum(tf.constant([0.75, 1.5]) * layer(x))
    tape.gradient(first, x)
    return tape.gradient(second, x)


def in_a_loop(layer, x, factor):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = layer(factor * x)
    slope = tf.zeros_like(x)
    for _ in tf.range(2):
        slope = tape.gradient(y, x, output_gradients=tf.constant([0.75, 1.5]))
    return slope


@pytest.mark.parametrize(
    ("build", "slope", "factor"),
    [
        (lambda f: f, one_after_the_other, math.inf),
        (tf.function, one_after_the_other, math.inf),
        (tf.function, one_after_the_other, 1.0),
        (tf.function, in_a_loop, 1.0),
    ],
)
def test_a_second_gradient_of_a_tape_is_seen_in_the_units_it_was_scaled_by(
    build, slope, factor
):
    layer = clipping(tf_amp.in_true_units)
    step = build(functools.partial(slope, layer))
    with scaled_by(DynamicLossScale(initial=2.0**10, growth_interval=1)) as scale:
        got = step(tf.ones([2]), tf.constant(factor))
        np.testing.assert_array_equal(got, [0.75, 1.0])
    # The first one has made the scale fall, or grow.
    assert figures(scale)[0] != 2.0**10


def test_only_functions_can_be_decorated():
    with pytest.raises(ConfigError, match="received 3"):
        tf_amp.in_true_units(3)


@contextlib.contextmanager
def under_a_mixed_policy():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


@contextlib.contextmanager
def disabled():
    tf_amp.disable()
    yield


LATER = {
    "the same": contextlib.nullcontext,
    "another scale": lambda: tf_amp.mixed_precision_scope(loss_scale=2.0),
    "no scale": lambda: tf_amp.mixed_precision_scope(loss_scale="none"),
    "a policy of Keras": under_a_mixed_policy,
    "nothing any more": disabled,
}


@pytest.mark.usefixtures("disabled_afterwards")
@pytest.mark.parametrize("name", LATER)
def test_a_function_may_be_called_before_it_is_known_what_will_be_scaled(name):
    tf_amp.enable("float16", opt_level="O0", loss_scale=1024.0)
    x = tf.constant(X)
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            # The gradient of the function is traced here.
            loss = tf.reduce_sum(tf.function(clipping(tf_amp.in_true_units))(x) ** 2)
        with LATER[name]():
            np.testing.assert_array_equal(tape.gradient(loss, x), EXPECTED)


@tf.custom_gradient
def broken(x):
    def slope(upstream):
        raise ZeroDivisionError

    return tf.identity(x), slope


@pytest.mark.usefixtures("disabled_afterwards")
def test_a_call_for_gradients_that_fails_leaves_no_scale_in_force():
    tf_amp.enable("float16", opt_level="O0", loss_scale=1024.0)
    x = tf.constant(X)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.function(clipping(tf_amp.in_true_units))(x) ** 2)
        failing = broken(x)
    with pytest.raises(ZeroDivisionError):
        tape.gradient(failing, x)
    with tf_amp.mixed_precision_scope(loss_scale="none"):
        np.testing.assert_array_equal(tape.gradient(loss, x), EXPECTED)


@pytest.mark.usefixtures("disabled_afterwards")
def test_what_the_program_scales_itself_is_seen_as_the_program_scales_it():
    tf_amp.enable("float16", opt_level="O0", loss_scale=1024.0)
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=8.0
    )
    optimizer.build([tf.Variable(X)])
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.function(clipping(tf_amp.in_true_units))(x) ** 2)
        loss = optimizer.scale_loss(loss)
    expected = np.clip(8.0 * 2 * X, -1.0, 1.0)
    np.testing.assert_array_equal(tape.gradient(loss, x), expected)


@pytest.mark.usefixtures("disabled_afterwards")
@pytest.mark.parametrize("use_pfor", [True, False])
def test_jacobians_through_functions_are_right_too(use_pfor):
    tf_amp.enable("float16", opt_level="O0", loss_scale=1024.0)

    @tf.function
    def jacobian(x):
        with tf.GradientTape() as outer, tf.GradientTape(persistent=True) as tape:
            outer.watch(x)
            tape.watch(x)
            y = tf.function(clipping(tf_amp.in_true_units))(x) ** 2
        return tape.jacobian(y, x, experimental_use_pfor=use_pfor)

    np.testing.assert_array_equal(jacobian(tf.constant(X)), np.diag(EXPECTED))
