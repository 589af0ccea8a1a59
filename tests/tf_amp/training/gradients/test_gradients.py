"""Gradients come out in true units, however they are asked for."""

import math

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.annotations import BARRIER
from tests.scaling import figures, scaled_by
from tests.ways_to_gradients import (
    EVERYWHERE,
    IN_FUNCTIONS,
    OF_CALLS,
    of_rows,
    through_python,
)
from tf_amp import DynamicLossScale, StaticLossScale
from tf_amp import _tensorflow_private as private

EAGER = (
    "of_weights_and_inputs",
    "with_a_gradient_penalty",
    "with_a_persistent_tape",
    "as_a_jacobian",
    "with_recomputation",
    "of_a_nested_function",
    "of_rows",
    "of_other_types",
    "of_a_ragged_tensor",
)
# One overflow is one, whatever it takes to compute gradients, but for programs that ask
# anew: a tape for each step of a loop, `tf.gradients` for each of its results.
OVERFLOWS = {"in_a_loop": 3, "by_tf_gradients": 4}
W = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)

BESIDES = (*OF_CALLS, through_python)
traced = [
    pytest.param(way, tf.function, id=way.__name__) for way in (*IN_FUNCTIONS, *BESIDES)
]
eager = [
    pytest.param(way, lambda f: f, id=f"{way.__name__} eager")
    for way in (*EVERYWHERE, *BESIDES)
    if way.__name__ in EAGER or way in BESIDES
]
compiled = [
    pytest.param(
        way, lambda f: tf.function(f, jit_compile=True), id=f"{way.__name__} compiled"
    )
    for way in (of_rows, EVERYWHERE[0])
]


def _is_bfloat16(gradient):
    return gradient is not None and gradient.dtype == tf.bfloat16


def built(way, build):
    # A function of its own, so that it is traced anew.
    compute = build(lambda w, x: way(w, x))

    def call(w=W, x=X):
        flat = tf.nest.flatten(compute(tf.constant(w), tf.constant(x)))
        # NumPy 1.26 compares no bfloat16.
        flat = [tf.cast(g, tf.float32) if _is_bfloat16(g) else g for g in flat]
        return [None if part is None else part.numpy() for part in flat]

    return call


def results(way, build, w=W, x=X):
    return built(way, build)(w, x)


def same(expected, got):
    assert [type(part) for part in expected] == [type(part) for part in got]
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("way", "build"), [*eager, *traced, *compiled])
def test_gradients_are_those_without_scaling_bit_by_bit_before_and_after_an_overflow(
    way, build
):
    plain = built(way, build)
    worst = W * np.float32(math.nan), X * np.float32(math.inf)
    expected, overflowed = plain(), plain(*worst)
    with scaled_by(DynamicLossScale(initial=2.0**12)) as loss_scale:
        call = built(way, build)
        same(expected, call())
        scale, good, skipped = figures(loss_scale)
        assert (scale, skipped) == (2.0**12, 0)
        assert good > 0

        same(overflowed, call(*worst))
        lowered, _, skipped = figures(loss_scale)
        assert skipped == OVERFLOWS.get(way.__name__, 1)
        assert lowered == scale / 2**skipped

        same(expected, call())
        scale, good, after = figures(loss_scale)
        assert (scale, after) == (lowered, skipped)
        assert good > 0


def test_gradients_of_a_penalty_lower_the_scale_once():
    def penalty(w, x):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(x * x @ w)
            slopes = inner.gradient(loss, x)
            norm = tf.norm(slopes)
        return outer.gradient(norm, w)

    with scaled_by(DynamicLossScale(initial=2.0**12)) as loss_scale:
        got = results(penalty, tf.function, W * np.float32(math.inf))
        assert not np.isfinite(got[0]).any()
        assert figures(loss_scale) == (2.0**11, 0, 1)


def test_no_alarm_is_raised_below_the_largest_float():
    def slopes(w, x):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_sum(w * x)
        return tape.gradient(loss, w)

    x = np.full_like(W, np.finfo(np.float32).max)
    with scaled_by(StaticLossScale(1.0)) as loss_scale:
        same([x], results(slopes, tf.function, W, x))
        same([-x], results(slopes, lambda f: f, W, -x))
        assert figures(loss_scale) == (1.0, 2, 0)
        x[3, 3] = math.inf
        same([x], results(slopes, tf.function, W, x))
        assert figures(loss_scale) == (1.0, 0, 1)


def test_an_adversarial_example_gets_its_true_gradient():
    def example(w, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum((x @ w) ** 2)
        return x + 0.1 * tf.sign(tape.gradient(loss, x))

    expected = results(example, tf.function)
    with scaled_by(DynamicLossScale()):
        same(expected, results(example, tf.function))


def test_small_float16_gradients_vanish_without_scaling_and_are_right_with_it():
    def slopes(w, x):
        # As if the rewriting pass had chosen float16 for the product.
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = tf.cast(x, tf.float16) @ tf.cast(w, tf.float16)
            loss = tf.reduce_sum(tf.cast(y, tf.float32)) * 1e-8
        return tape.gradient(loss, w)

    x = np.ones_like(X)
    (vanished,) = results(slopes, tf.function, W, x)
    assert not vanished.any()
    with scaled_by(StaticLossScale(2.0**20)):
        (right,) = results(slopes, tf.function, W, x)
    np.testing.assert_allclose(right, np.full_like(W, 4e-8), rtol=2.0**-10)


def test_unscaling_carries_the_barrier_mark():
    with scaled_by(DynamicLossScale()):

        @tf.function
        def slope(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(x**2)
            return tape.gradient(y, x)

        graph = slope.get_concrete_function(tf.TensorSpec([3])).graph.as_graph_def()
    marked = [n for n in graph.node if BARRIER in n.attr and n.attr[BARRIER].b]
    assert [node.op for node in marked] == ["Mul"]


def test_a_step_has_few_nodes_more_than_without_scaling():
    def count(gradients):
        @tf.function
        def slopes(*weights):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                y = tf.add_n([tf.reduce_sum(w * w) for w in weights])
            return tape.gradient(y, weights)

        specs = [tf.TensorSpec([3, 3])] * gradients
        return len(slopes.get_concrete_function(*specs).graph.get_operations())

    plain = count(20)
    with scaled_by(DynamicLossScale()):
        assert count(20) - plain <= 40 + 6 * 20


def test_scaling_is_undone_when_it_is_removed():
    originals = tf.GradientTape.gradient, tf.GradientTape.__enter__
    with scaled_by(DynamicLossScale()):
        assert tf.GradientTape.gradient is not originals[0]
    assert (tf.GradientTape.gradient, tf.GradientTape.__enter__) == originals
    assert all(hook.of_callbacks for hook in private.installed())


def test_errors_of_tensorflow_stay_its_own():
    with scaled_by(DynamicLossScale()):
        x = tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        tape.gradient(y, x)
        with pytest.raises(RuntimeError, match="non-persistent"):
            tape.gradient(y, x)
        with tf.GradientTape() as tape:
            tape.watch(x)
        with pytest.raises(TypeError, match="None"):
            tape.gradient(None, x)
        with tf.Graph().as_default():
            z = tf.compat.v1.placeholder(tf.complex64, [])
            with pytest.raises(TypeError, match="complex"):
                tf.gradients(z * z, z)


def test_an_integer_target_has_no_gradient():
    with scaled_by(DynamicLossScale()) as loss_scale:
        x = tf.constant(2.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cast(x, tf.int32)
        assert tape.gradient(y, x) is None
        assert figures(loss_scale) == (1.0, 0, 0)


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
