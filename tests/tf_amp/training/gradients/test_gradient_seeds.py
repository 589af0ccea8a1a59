"""Whatever gradients are taken of is scaled and checked, in the range of its type."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import figures, scaled_by
from tf_amp import DynamicLossScale, StaticLossScale

X = np.linspace(0.5, 2.0, 4, dtype=np.float32)
BAD = X * np.float32(math.inf)


def slope_of(target):
    """Return a function of x that takes a gradient of v * x and of others."""
    v = tf.Variable(X)

    def slope(x):
        with tf.GradientTape() as tape:
            y = v * x
            targets = target(tf.reduce_sum(y), v, y)
        return tape.gradient(targets, v)

    return slope


def as_ragged(values):
    return tf.RaggedTensor.from_row_splits(values, [0, 1, 4])


TARGETS = {
    "a variable": (lambda loss, v, y: [loss, v], 1.0),
    "a variable alone": (lambda loss, v, y: v, 1.0),
    "a ragged tensor": (lambda loss, v, y: as_ragged(y), 0.0),
    "a nest of them": (lambda loss, v, y: {"a": [as_ragged(y)], "b": v}, 1.0),
}


@pytest.mark.parametrize("build", [tf.function, lambda f: f], ids=["function", "eager"])
@pytest.mark.parametrize("name", TARGETS)
def test_gradients_are_scaled_and_checked(name, build):
    target, added = TARGETS[name]
    alone = name == "a variable alone"
    plain = build(slope_of(target))(tf.constant(X))
    np.testing.assert_array_equal(plain, np.ones_like(X) if alone else X + added)
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        slope = build(slope_of(target))
        np.testing.assert_array_equal(slope(tf.constant(X)), plain)
        assert figures(loss_scale) == (2.0**10, 1, 0)
        if not alone:
            np.testing.assert_array_equal(slope(tf.constant(BAD)), BAD)
            assert figures(loss_scale) == (2.0**9, 0, 1)


def test_a_variable_of_keras_is_a_target_too():
    v = keras.Variable(X)

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v.value * x)
        return tape.gradient([loss, v], v.value)

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        np.testing.assert_array_equal(slope(tf.constant(X)), X + 1)
        assert figures(loss_scale) == (2.0**10, 1, 0)


def test_tf_gradients_takes_these_targets_as_well():
    v = tf.Variable(X)

    @tf.function
    def slopes(x):
        y = v * x
        given = as_ragged(2 * tf.ones_like(x))
        return [
            tf.gradients(as_ragged(y), x)[0],
            tf.gradients(as_ragged(y), x, grad_ys=[given])[0],
        ]

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        once, twice = slopes(tf.constant(X))
        np.testing.assert_array_equal(once, X)
        np.testing.assert_array_equal(twice, 2 * X)
        assert figures(loss_scale) == (2.0**10, 2, 0)


def test_what_cannot_be_scaled_is_named_once(logged):
    v = tf.Variable(X)

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * x)
        return tape.gradient([loss, v.handle], v)

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        np.testing.assert_array_equal(slope(tf.constant(X)), X + 1)
        assert figures(loss_scale)[1:] == (0, 0)
    assert [line for line in logged if "resource" in line]


def half_slope(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.cast(x * x, tf.float16)
    return tape.gradient(y, x)


@pytest.mark.parametrize("build", [tf.function, lambda f: f], ids=["function", "eager"])
@pytest.mark.parametrize("scale", [2.0**15, 2.0**17, 2.0**30])
def test_a_float16_target_is_scaled_as_far_as_float16_goes(scale, build, logged):
    with scaled_by(StaticLossScale(scale)) as loss_scale:
        slope = build(half_slope)
        np.testing.assert_array_equal(slope(tf.constant(X)), 2 * X)
        assert figures(loss_scale) == (scale, 1, 0)
    assert bool([line for line in logged if "float16" in line]) is (scale > 2.0**15)


def half_slope_in_a_loop(x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = tf.cast(x * x, tf.float16)
    total = tf.zeros_like(x)
    for _ in tf.range(2):
        total += tape.gradient(y, x)
    return total


@pytest.mark.parametrize(
    "slope",
    [half_slope, tf.function(half_slope), tf.function(half_slope_in_a_loop)],
    ids=["eager", "function", "loop"],
)
def test_a_scale_that_float16_targets_cut_grows_uncut_and_backs_off_from_there(slope):
    with scaled_by(DynamicLossScale(initial=2.0**22, growth_interval=2)) as loss_scale:
        slope(tf.constant(X))
        assert figures(loss_scale) == (2.0**22, 1, 0)
        slope(tf.constant(X))
        assert figures(loss_scale) == (2.0**23, 0, 0)
        slope(tf.constant(BAD))
        assert figures(loss_scale) == (2.0**14, 0, 1)


def test_the_same_holds_in_a_session():
    v1 = tf.compat.v1
    scale = DynamicLossScale(initial=2.0**22, growth_interval=1)
    with tf.Graph().as_default(), v1.Session() as session, scaled_by(scale):
        x = v1.placeholder(tf.float32, X.shape)
        slope = half_slope(x)
        session.run(v1.global_variables_initializer())
        session.run(slope, {x: X})
        assert figures(scale) == (2.0**23, 0, 0)
        session.run(slope, {x: BAD})
        assert figures(scale) == (2.0**14, 0, 1)


def test_gradients_that_only_unscaling_takes_out_of_float16_overflow():
    loss_scale = DynamicLossScale(initial=2.0**-4, minimum=2.0**-8)

    @tf.function
    def slope(x, factor):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.cast(x, tf.float32) * factor)
        return tape.gradient(y, x)

    x = tf.constant([1.0], tf.float16)
    with scaled_by(loss_scale):
        # 2**15 fits both ways, 2**17 only while it is scaled down.
        assert slope(x, 2.0**15).numpy() == [2.0**15]
        assert figures(loss_scale) == (2.0**-4, 1, 0)
        assert slope(x, 2.0**17).numpy() == [math.inf]
        assert figures(loss_scale) == (2.0**-5, 0, 1)


@pytest.mark.parametrize("has_shape", [False, True], ids=["of any size", "of four"])
def test_slices_to_start_from_are_scaled_and_stay_slices(has_shape):
    with (
        tf.Graph().as_default(),
        tf.compat.v1.Session() as session,
        scaled_by(DynamicLossScale(initial=2.0**10)),
    ):
        x = tf.compat.v1.placeholder(tf.float32, [4])
        shape = tf.constant([4]) if has_shape else None
        seed = tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]), shape)
        (slope,) = tf.gradients(tf.identity(x), x, grad_ys=seed)
        assert isinstance(slope, tf.IndexedSlices)
        session.run(tf.compat.v1.global_variables_initializer())
        values, indices = session.run([slope.values, slope.indices], {x: X})
        assert (values.tolist(), indices.tolist()) == ([2.0], [1])


def test_a_tape_adds_slices_to_start_from_to_a_dense_gradient():
    seed = tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]), tf.constant([4]))
    x = tf.constant(X)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = 3.0 * x
        slope = tape.gradient(y, x, output_gradients=seed)
    np.testing.assert_array_equal(slope, [0, 6, 0, 0])


def test_gradients_of_gradients_go_through_what_is_computed_again():
    cubed = tf.recompute_grad(lambda x: tf.reduce_sum(x**3))
    x = tf.constant(X)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = cubed(x)
            slope = inner.gradient(y, x)
        np.testing.assert_allclose(outer.gradient(slope, x), 6 * X, rtol=1e-6)


def test_a_whole_number_beside_a_target_starts_from_one():
    doubled = tf.recompute_grad(tf.function(lambda count, x: (2 * count, 2 * x)))
    x = tf.constant(X)
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        with tf.GradientTape() as tape:
            tape.watch(x)
            both = doubled(tf.constant(1), x)
        np.testing.assert_array_equal(tape.gradient(both, x), 2 * np.ones_like(X))
        assert figures(loss_scale) == (2.0**10, 1, 0)
