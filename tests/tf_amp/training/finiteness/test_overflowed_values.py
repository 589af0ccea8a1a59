"""Gradients that overflow are seen as they are; no variable takes them up."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import are_equal, figures, scaled_by, values_of
from tests.tf_amp.training.optimizers.test_exact_skip import X, gradients_of, weights
from tf_amp import DynamicLossScale

v1 = tf.compat.v1
BAD = X * np.float32(math.inf)

built = pytest.mark.parametrize(
    "build", [tf.function, lambda f: f], ids=["function", "eager"]
)


def scale():
    return DynamicLossScale(initial=2.0**10)


def slope_of(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(x * x)
    return tape.gradient(y, x)


@built
def test_who_looks_at_gradients_sees_infinities_and_their_finite_neighbors(build):
    look = build(slope_of)
    with scaled_by(scale()) as loss_scale:
        found = look(tf.constant([math.inf, 0.25, -math.inf]))
        np.testing.assert_array_equal(found, [math.inf, 0.5, -math.inf])
        assert figures(loss_scale) == (2.0**9, 0, 1)


def test_who_fetches_gradients_from_a_session_sees_them_too():
    with tf.Graph().as_default(), v1.Session() as session, scaled_by(scale()):
        fed = v1.placeholder(tf.float32, [2])
        (slope,) = tf.gradients(tf.reduce_sum(fed * fed), [fed])
        found = session.run(slope, {fed: [math.inf, 0.25]})
    np.testing.assert_array_equal(found, [math.inf, 0.5])


def in_float16(weight, x, factor):
    """Return a loss in float32, of a product whose gradients float16 has to hold."""
    return factor * tf.reduce_sum(tf.cast(tf.cast(weight * x, tf.float16), tf.float32))


@built
def test_a_dynamic_loss_scale_of_the_programs_own_does_no_harm(build):
    weight, own = tf.Variable(tf.zeros(4)), tf.Variable(2.0**15)
    taken = tf.Variable(0)

    @build
    def step(x):
        with tf.GradientTape() as tape:
            loss = in_float16(weight, x, own)
        slope = tape.gradient(loss, weight) / own
        finite = tf.reduce_all(tf.math.is_finite(slope))
        weight.assign_sub(0.125 * tf.where(finite, slope, tf.zeros_like(slope)))
        own.assign(tf.where(finite, own * 2.0, own / 2.0))
        taken.assign_add(tf.cast(finite, tf.int32))

    with scaled_by(DynamicLossScale(growth_interval=8)) as loss_scale:
        for _ in range(80):
            step(tf.ones(4))
        scales = figures(loss_scale)[0], float(own)
    assert math.isfinite(scales[1])
    assert scales[0] <= 2.0**18 < 2.0**40 < scales[1]
    assert int(taken) > 60
    np.testing.assert_array_equal(weight, tf.fill(4, -0.125 * float(taken)))


def by_difference(variable, slope):
    variable.assign_sub(0.1 * slope)


def by_value(variable, slope):
    variable.assign(variable - 0.1 * slope)


def clipped(variable, slope):
    variable.assign_add(-0.1 * tf.clip_by_value(slope, -1.0, 1.0))


def by_rows(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    variable.scatter_sub(tf.IndexedSlices(0.1 * slope, rows))


def by_new_rows(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    new = variable - 0.1 * slope
    variable.scatter_nd_update(rows[:, None], new)


def by_slice(variable, slope):
    variable[...].assign(variable - 0.1 * slope)


def by_some_rows(variable, slope):
    variable[1:3].assign((variable - 0.1 * slope)[1:3])


def by_factors(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    variable.scatter_mul(tf.IndexedSlices(1.0 - 0.1 * slope, rows))


def by_divisors(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    variable.scatter_div(tf.IndexedSlices(1.0 / (1.0 - 0.1 * slope), rows))


def size_of(slope):
    # What is not a number is neither the larger nor the smaller one.
    return tf.where(tf.math.is_nan(slope), math.inf, tf.abs(slope))


def by_upper_rows(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    variable.scatter_max(tf.IndexedSlices(variable + size_of(slope), rows))


def by_lower_rows(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    variable.scatter_min(tf.IndexedSlices(variable - size_of(slope), rows))


def by_upper_parts(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    variable.scatter_nd_max(rows[:, None], variable + size_of(slope))


def by_lower_parts(variable, slope):
    rows = tf.range(tf.shape(slope)[0])
    variable.scatter_nd_min(rows[:, None], variable - size_of(slope))


def in_a_branch(variable, slope):
    def act():
        variable.assign_sub(0.1 * slope)
        return True

    tf.cond(tf.size(slope) > 0, act, lambda: False)


WRITES = [by_difference, by_value, clipped, by_rows, by_new_rows, in_a_branch]
UNCLIPPED = [write for write in WRITES if write is not clipped]
OF_ROWS = [
    by_slice,
    by_some_rows,
    by_factors,
    by_divisors,
    by_upper_rows,
    by_lower_rows,
]
# XLA has no kernels for the last two.
OF_PARTS = [*OF_ROWS, by_upper_parts, by_lower_parts]


def check_kept(step, written):
    """Run good, bad and good steps; what each way has written is told by its name."""
    step(tf.constant(X))
    before = {name: values_of(written[name]) for name in written}
    step(tf.constant(BAD))
    for name, variables in written.items():
        assert are_equal(before[name], values_of(variables)), name
    step(tf.constant(X))
    for name, variables in written.items():
        after = values_of(variables)
        assert not are_equal(before[name], after), name
        assert all(np.isfinite(value).all() for value in after), name


def written_by(writes):
    """Return a matrix for each way of writing, by its name, and what writes them."""
    written = {write.__name__: weights()[:1] for write in writes}

    def update(slopes):
        for write, (variable,) in zip(writes, written.values(), strict=True):
            write(variable, slopes[0])

    return written, update


def eager(take, write):
    return lambda x: write(take(x))


def traced(take, write):
    return tf.function(eager(take, write))


def compiled(take, write):
    return tf.function(eager(take, write), jit_compile=True)


# How a step is made of what takes gradients and what writes, and by which ways.
STEPS = {
    "a function": (traced, [*WRITES, *OF_PARTS]),
    "compiled": (compiled, [*WRITES, *OF_ROWS]),
    "a nested function": (
        lambda take, write: traced(tf.function(take), write),
        [*WRITES, by_slice],
    ),
    "eager": (eager, [*UNCLIPPED, *OF_PARTS]),
    "eager, of a function": (
        lambda take, write: eager(tf.function(take), write),
        [*UNCLIPPED, by_some_rows],
    ),
    "eager, written by a function": (
        lambda take, write: eager(take, tf.function(write)),
        [*UNCLIPPED, by_some_rows],
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_is_written_by_hand_is_skipped(name):
    build, writes = STEPS[name]
    variables, (written, update) = weights(), written_by(writes)
    step = build(lambda x: gradients_of(variables, x), update)
    with scaled_by(scale()):
        check_kept(step, written)


@pytest.mark.parametrize("write", [by_difference, by_rows, by_slice])
def test_what_a_function_writes_where_it_reads_is_skipped(write):
    variables = weights()

    @tf.function
    def step(x):
        slopes = gradients_of(variables, x)
        for variable, slope in zip(variables, slopes, strict=True):
            write(variable, slope)

    with scaled_by(scale()):
        check_kept(step, {write.__name__: variables})


def test_a_momentum_by_hand_and_its_step_stay():
    weight, momentum = tf.Variable(X), tf.Variable(tf.zeros_like(X))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((weight * x) ** 2)
        momentum.assign(0.9 * momentum + tape.gradient(loss, weight))
        weight.assign_sub(0.1 * momentum)

    with scaled_by(scale()):
        check_kept(step, {"momentum": [momentum], "step": [weight]})


def test_what_is_read_before_or_computed_of_what_stays_is_written():
    weight, before = tf.Variable(tf.ones(4)), tf.Variable(tf.zeros(4))
    loss, mean = tf.Variable(0.0), tf.Variable(tf.zeros(4))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(weight * x)
        before.assign_add(2.0 * weight)
        old = 1.0 * weight
        weight.assign_sub(tape.gradient(value, weight))
        before.assign_sub(old)
        second = tf.ones([8, 4]) * weight
        loss.assign_add(tf.reduce_sum(second))
        mean.assign(0.5 * mean + 0.5 * tf.reduce_mean(second, 0))

    with scaled_by(scale()):
        step(tf.fill(4, math.inf))
    np.testing.assert_array_equal(weight, tf.ones(4))
    np.testing.assert_array_equal(before, tf.ones(4))
    np.testing.assert_array_equal(mean, tf.fill(4, 0.5))
    assert float(loss) == 32.0


@pytest.mark.parametrize("is_resource", [True, False])
def test_what_a_session_writes_by_hand_is_skipped(is_resource):
    ways = {
        "assign_sub": lambda w, slope: v1.assign_sub(w, 0.1 * slope),
        "assign": lambda w, slope: v1.assign(w, w - 0.1 * slope),
        "slice": lambda w, slope: w[1:3].assign((w - 0.1 * slope)[1:3]),
        "factors": lambda w, slope: v1.scatter_mul(w, tf.range(4), 1.0 - 0.1 * slope),
    }
    with tf.Graph().as_default(), v1.Session() as session, scaled_by(scale()):
        x = v1.placeholder(tf.float32, [16, 4])
        weights = [v1.get_variable(n, [4, 1], use_resource=is_resource) for n in ways]
        losses = [tf.reduce_mean((x @ weight) ** 2) for weight in weights]
        slopes = tf.gradients(losses, weights)
        train = [
            write(weight, slope)
            for write, weight, slope in zip(ways.values(), weights, slopes, strict=True)
        ]
        session.run(v1.global_variables_initializer())
        session.run(train, {x: X})
        before = session.run(weights)
        session.run(train, {x: BAD})
        for way, was, weight in zip(ways, before, weights, strict=True):
            np.testing.assert_array_equal(session.run(weight), was, way)
        session.run(train, {x: X})
        for way, was, weight in zip(ways, before, weights, strict=True):
            assert not np.array_equal(session.run(weight), was), way


@built
def test_what_a_program_learns_from_an_overflow_is_written(build):
    weight, seen = [tf.Variable(tf.ones(4)), tf.Variable(1.0)], tf.Variable(0.0)
    best, norm, chosen = (tf.Variable(first) for first in (1.0, 0.0, 0.0))

    @build
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight[0] * weight[1] * x)
        slope, _ = tape.gradient(loss, weight)
        finite = tf.reduce_all(tf.math.is_finite(slope))
        seen.assign_add(1.0 - tf.cast(finite, tf.float32))
        best.assign(tf.where(finite, best, math.inf))
        norm.assign(tf.cond(finite, lambda: tf.norm(slope), lambda: -1.0))
        ways = [lambda: -1.0, lambda: tf.norm(slope)]
        chosen.assign(tf.switch_case(tf.cast(finite, tf.int32), ways))

    with scaled_by(scale()):
        step(tf.fill(4, math.inf))
    assert (float(seen), float(best), float(norm)) == (1.0, math.inf, -1.0)
    assert float(chosen) == -1.0


@pytest.mark.parametrize("shape", [(4,), ()])
def test_a_sum_of_losses_that_come_beside_gradients_goes_on(shape):
    weight, total = tf.Variable(tf.ones(shape)), tf.Variable(0.0)

    @tf.function
    def inner(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.minimum(weight * x, 8.0))
            steep = tf.reduce_sum(weight * x)
        return tape.gradient(steep, weight), loss

    @tf.function
    def step(x):
        slope, loss = inner(x)
        weight.assign_sub(0.125 * slope)
        total.assign_add(loss)

    with scaled_by(scale()):
        step(tf.ones(shape))
        kept, before = weight.numpy(), float(total)
        step(tf.fill(shape, math.inf))
        np.testing.assert_array_equal(weight, kept)
        assert float(total) == before + 8.0 * kept.size


def test_infinities_of_other_origin_are_written():
    mask, weight = tf.Variable(tf.zeros(3)), tf.Variable(tf.ones(4))
    with scaled_by(scale()):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * math.inf)
        tape.gradient(loss, weight)
        mask.assign([0.0, -math.inf, 0.0])
        tf.function(lambda value: mask.assign_add(value))(tf.fill(3, math.inf))
        made = tf.Variable(tf.fill(4, math.inf))
    assert np.isnan(mask.numpy()[1])
    assert np.isinf(made.numpy()).all()


def test_weights_of_keras_layers_written_by_hand_stay():
    layer = keras.layers.Dense(2)
    layer.build((None, 4))

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(x) ** 2)
        slopes = tape.gradient(loss, layer.trainable_variables)
        for variable, slope in zip(layer.trainable_variables, slopes, strict=True):
            variable.assign(variable - 0.1 * slope)

    with scaled_by(scale()):
        check_kept(step, {"layer": layer.trainable_variables})
