"""What a program multiplies its loss by itself does not scale the gradients twice."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import clipped, figures, scaled_by
from tf_amp import DynamicLossScale, StaticLossScale, StatisticalLossScale

v1 = tf.compat.v1
W = np.linspace(-1.0, 2.0, 12, dtype=np.float32).reshape(4, 3)
X = np.linspace(0.5, 2.0, 8, dtype=np.float32).reshape(2, 4)
OURS = 2.0**10


def taken_of(target, w, x, *, by_tape=True, **kwargs):
    """Return the gradient of a target made of a loss, and what the loss begins with."""
    upstream = []

    @tf.custom_gradient
    def watched(value):
        def slope(given):
            upstream.append(given)
            return given

        return tf.identity(value), slope

    def made():
        return target(watched(tf.reduce_mean((x @ w) ** 2)))

    if not by_tape:
        (gradient,) = tf.gradients(made(), w, **kwargs)
        return gradient, upstream[0]
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = made()
    return tape.gradient(loss, w, **kwargs), upstream[0]


def outside(target, build=lambda function: function, **kwargs):
    def taken(w, x, n):
        return taken_of(lambda loss: target(loss, n), w, x, **kwargs)

    return build(taken)(tf.constant(W), tf.constant(X), tf.constant(3))


in_a_function = functools.partial(outside, build=tf.function)
LEARNED = tf.Variable(2.0**15)
THEIRS = tf.Variable(2.0**15, trainable=False)
SCALES = {
    "a number": lambda loss, n: loss * 2.0**15,
    "a number in front": lambda loss, n: 2.0**15 * loss,
    "a constant": lambda loss, n: tf.constant(2.0**15) * loss,
    "a variable": lambda loss, n: loss * THEIRS,
    "a variable that learns": lambda loss, n: LEARNED * loss,
    "of float64": lambda loss, n: tf.cast(loss, tf.float64) * 2.0**15,
    "one of several": lambda loss, n: loss * tf.gather([1.0, 4.0, 64.0, 3e4], n),
    "of the step": lambda loss, n: loss * tf.exp(tf.cast(n, tf.float32) * 3),
    "no power of two": lambda loss, n: -1000.0 * loss,
    "a quotient": lambda loss, n: loss / (1 / THEIRS),
    "two factors": lambda loss, n: (loss * 64.0 + 1.0) * (THEIRS / 2),
    "of every part": lambda loss, n: tf.reduce_sum(tf.reshape(loss, [1]) * THEIRS),
    "of a sum": lambda loss, n: (loss + 0.5) * THEIRS + 0.25 * loss,
    "of many parts": lambda loss, n: sum([loss / 256] * 256) * THEIRS,
    "of a stack": lambda loss, n: tf.reduce_sum([loss * 64.0, loss * THEIRS]),
    "of two parts": lambda loss, n: loss * 64.0 + loss * THEIRS,
    "of two targets": lambda loss, n: [loss * 64.0, loss * THEIRS],
}


PARTS = ("of every", "of a s", "of many", "of two")
WAYS = [
    *((in_a_function, name, True) for name in SCALES),
    *(
        (in_a_function, n, False)
        for n in ("a variable", "a quotient", "of two targets")
    ),
    *((outside, name, True) for name in SCALES if not name.startswith(PARTS)),
]


@pytest.mark.parametrize(("take", "name", "by_tape"), WAYS)
def test_the_backward_pass_is_scaled_once(take, name, by_tape):
    expected, factor = take(SCALES[name], by_tape=by_tape)
    with scaled_by(StaticLossScale(OURS)):
        gradient, upstream = take(SCALES[name], by_tape=by_tape)

    assert abs(factor) > 400
    # Of two factors, that of the last operation is found outside of functions.
    most = 2 * OURS * (64 if take is outside and name == "two factors" else 1)
    # Where other tests have loaded the pass, it takes a scale out of a float32 graph.
    is_taken_out = take is in_a_function and upstream == factor
    assert OURS <= abs(upstream) < most or is_taken_out
    np.testing.assert_array_equal(gradient, expected)


WEIGHTS = {
    "less than one": (lambda loss, n: 0.5 * loss, 0.5),
    "a constant below one": (lambda loss, n: loss / 256.0, 2.0**-8),
    "zero": (lambda loss, n: loss * 0.0, 0.0),
    "a quotient by zero": (lambda loss, n: loss / 0.0, np.inf),
    "infinite": (lambda loss, n: loss * np.inf, np.inf),
    "of a mean": (lambda loss, n: loss / tf.cast(n, tf.float32), 1 / 3),
    "a vector": (lambda loss, n: tf.reduce_sum(loss * [64.0, 0.0]), 64.0),
    "of the loss itself": (lambda loss, n: loss * loss / tf.stop_gradient(loss), 2.0),
}


@pytest.mark.parametrize("take", [in_a_function, outside])
@pytest.mark.parametrize("name", WEIGHTS)
def test_what_makes_gradients_no_larger_or_is_no_number_changes_nothing(name, take):
    target, factor = WEIGHTS[name]
    with scaled_by(StaticLossScale(OURS)):
        _, upstream = take(target)
    assert float(upstream) == pytest.approx(OURS * factor)


@pytest.mark.parametrize("given", [2.0**15, lambda: THEIRS.read_value()])
def test_a_number_that_gradients_start_from_is_one_too(given):
    def taken(w, x):
        seed = given() if callable(given) else tf.constant(given)
        return taken_of(lambda loss: loss, w, x, output_gradients=seed)

    expected, _ = taken(tf.constant(W), tf.constant(X))
    with scaled_by(StaticLossScale(OURS)):
        for build in (tf.function, lambda f: f):
            gradient, upstream = build(taken)(tf.constant(W), tf.constant(X))
            assert float(upstream) == OURS
            np.testing.assert_array_equal(gradient, expected)


SOURCES = {
    "a variable": lambda: tf.Variable(1.0),
    "a variable of Keras": lambda: keras.Variable(1.0),
    "a tensor": lambda: tf.constant(1.0),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_is_no_number(name):
    source = SOURCES[name]()

    @tf.function
    def slope(source, other):
        tensor = tf.convert_to_tensor(source)
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            loss = tensor * other
        return tape.gradient(loss, tensor if tf.is_tensor(source) else source)

    loss_scale = DynamicLossScale(initial=2.0**126, maximum=2.0**126)
    with scaled_by(loss_scale):
        # The other factor is one: else this would overflow.
        assert slope(source, tf.constant(16.0)) == 16.0
    assert figures(loss_scale) == (2.0**126, 1, 0)


def own_training(build, loss_scale, *, is_clipped=False):
    """Return weights, the program's scale and lost steps after 12 that it scales."""
    w = tf.Variable(W)
    scale, lost = tf.Variable(2.0**20), tf.Variable(0)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.tanh(x @ w) ** 2) * scale
        gradient = tape.gradient(loss, w)
        gradient = tf.where(tf.abs(gradient) > 3e19, np.inf, gradient)
        unscaled = gradient * (1 / scale)
        if is_clipped:
            unscaled = tf.clip_by_norm(gradient / scale, 0.01)
        finite = tf.reduce_all(tf.math.is_finite(unscaled))
        w.assign(tf.where(finite, w - unscaled, w))
        scale.assign(tf.where(finite, scale * 2, scale / 2))
        lost.assign_add(tf.cast(~finite, tf.int32))

    with scaled_by(loss_scale):
        step = build(step)
        for _ in range(12):
            step(tf.constant(X))
    return w.numpy(), float(scale), int(lost)


@pytest.mark.parametrize("build", [tf.function, lambda f: f], ids=["function", "eager"])
@pytest.mark.parametrize("is_clipped", [False, True])
def test_a_program_with_a_growing_scale_trains_as_it_does_alone(is_clipped, build):
    alone = own_training(build, StaticLossScale(1.0), is_clipped=is_clipped)
    loss_scale = DynamicLossScale(initial=2.0**15)
    beside = own_training(build, loss_scale, is_clipped=is_clipped)

    assert alone[1:] == (2.0**32, 0)
    np.testing.assert_array_equal(beside[0], alone[0])
    assert beside[1:] == alone[1:]
    assert figures(loss_scale) == (2.0**15, 12, 0)


def test_two_losses_have_two_scales():
    @tf.function
    def slopes(w, x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([w, x])
            first, second = tf.reduce_mean(x @ w) * 2.0**100, tf.reduce_sum(x) * THEIRS
        return tape.gradient(first, w) / 2.0**100, tape.gradient(second, x) / THEIRS

    loss_scale = DynamicLossScale(initial=2.0**40, maximum=2.0**40)
    with scaled_by(loss_scale):
        first, second = slopes(tf.constant(W), tf.constant(X))
    np.testing.assert_array_equal(second, np.ones_like(X))
    np.testing.assert_allclose(first, np.repeat(X.sum(0)[:, None], 3, 1) / 6, rtol=1e-6)
    assert figures(loss_scale) == (2.0**40, 1, 0)


@pytest.mark.parametrize("layer", [clipped, tf.function(clipped)])
def test_true_units_are_those_of_the_program(layer):
    def slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) ** 2) * (THEIRS / 2.0**15 * 3.0)
        again = tf.reduce_sum(layer(x) ** 2) * (THEIRS / 2.0**15 * 3.0)
        return tape.gradient(loss, x), tf.gradients(again, x)[0]

    x = tf.constant([-0.1, 0.02, 0.5])
    expected = np.clip(6.0 * x, -1.0, 1.0)
    with scaled_by(StaticLossScale(OURS)):
        np.testing.assert_allclose(tf.function(slopes)(x), [expected] * 2, rtol=1e-6)


@pytest.mark.parametrize("is_resource", [True, False])
@pytest.mark.parametrize("value", [2.0**100])
def test_a_scale_that_a_session_feeds_is_seen(value, is_resource):
    with (
        tf.Graph().as_default(),
        scaled_by(StaticLossScale(OURS)),
        v1.Session() as session,
    ):
        w = v1.get_variable("w", initializer=W, use_resource=is_resource)
        fed = v1.placeholder(tf.float32, [])
        gradient, upstream = taken_of(lambda y: y * fed, w, X, by_tape=False)
        optimizer = v1.train.GradientDescentOptimizer(0.5)
        pairs = optimizer.compute_gradients(tf.reduce_mean((X @ w) ** 2) * fed)
        train = optimizer.apply_gradients([(g / fed, v) for g, v in pairs])
        session.run(v1.global_variables_initializer())
        gradient, upstream = session.run([gradient, upstream], {fed: value})
        session.run(train, {fed: value})
        after = session.run(w)
    exact = X.T @ (2 * X @ W / 6)
    assert OURS <= upstream < 2 * OURS
    np.testing.assert_allclose(gradient / value, exact, rtol=1e-5)
    np.testing.assert_allclose(after, W - 0.5 * exact, rtol=1e-5)


def test_a_loss_scale_that_looks_at_gradients_does_not_see_the_program_s_own():
    def scale_after(factor):
        with scaled_by(StatisticalLossScale()) as loss_scale:
            in_a_function(lambda loss, n: loss * factor)
        return figures(loss_scale)[0]

    assert scale_after(2.0**15) == scale_after(1.0) != StatisticalLossScale().initial
