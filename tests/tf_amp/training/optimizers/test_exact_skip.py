"""A step that overflows changes nothing; the one after it trains."""

import gc
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import are_equal, figures, scaled_by, values_of
from tf_amp import (
    DynamicLossScale,
    NoOpLossScale,
    StaticLossScale,
    mixed_precision_scope,
)
from tf_amp.training.scale_state import states_in_use

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def weights():
    rng = np.random.default_rng(1)
    shapes = [(4, 8), (8,), (8, 1)]
    return [tf.Variable(rng.normal(size=s).astype(np.float32)) for s in shapes]


def loss_of(variables, x):
    first, bias, last = variables
    hidden = tf.tanh(x @ first + bias)
    return tf.reduce_mean((hidden @ last - Y) ** 2)


def gradients_of(variables, x):
    with tf.GradientTape() as tape:
        loss = loss_of(variables, x)
    return tape.gradient(loss, variables)


def check_skips(step, everything, *, overflow=None):
    """Run good, bad and good steps; `everything()` are the variables to watch."""
    bad = X * np.float32(math.inf) if overflow is None else overflow
    step(tf.constant(X))
    before = values_of(everything())
    step(tf.constant(bad))
    assert are_equal(before, values_of(everything()))
    step(tf.constant(X))
    after = values_of(everything())
    assert not are_equal(before, after)
    assert all(np.isfinite(value).all() for value in after)


def built(optimizer, variables):
    """Return an optimizer whose first step makes no variables, and so traces once."""
    optimizer.build(variables)
    return optimizer


def momentum(variables):
    return built(keras.optimizers.SGD(0.1, momentum=0.9), variables)


def adam_and_all():
    """Return an optimizer that does whatever one of Keras may do around an update."""
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        weight_decay=0.1,
        use_ema=True,
        ema_overwrite_frequency=2,
        global_clipnorm=1.0,
    )


def test_finite_steps_are_those_without_scaling():
    def trained(loss_scale):
        variables = weights()
        optimizer = built(adam_and_all(), variables)
        with scaled_by(loss_scale):

            @tf.function
            def step(x):
                optimizer.apply(gradients_of(variables, x), variables)

            for _ in range(3):
                step(tf.constant(X))
        return values_of([*variables, *optimizer.variables])

    plain = trained(NoOpLossScale())
    assert are_equal(plain, trained(DynamicLossScale(initial=2.0**10)))


@pytest.mark.parametrize("compiled", [False, True])
def test_keras_fit_skips_whole_steps(compiled):
    keras.utils.set_random_seed(0)
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((4,)), *layers])
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=compiled)

        def step(x):
            model.fit(x, Y, batch_size=16, verbose=0)

        check_skips(step, lambda: [*model.weights, *model.optimizer.variables])
        assert figures(loss_scale) == (2.0**9, 1, 1)
        assert int(model.optimizer.iterations) == 2


def test_a_custom_train_step_trains_as_fast_as_without_scaling():
    # Under the mixed_float16 policy of Keras, such a step that does not call
    # `scale_loss` trains at the learning rate divided by the scale.
    class Custom(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            slopes = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(slopes, self.trainable_variables)
            return {"loss": loss}

    def trained(loss_scale):
        with scaled_by(loss_scale):
            model = Custom()
            model.compile(keras.optimizers.SGD(0.1))
            model.fit(X, 2 * Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return values_of(model.weights)

    assert are_equal(trained(NoOpLossScale()), trained(DynamicLossScale()))


def test_accumulation_drops_only_the_step_that_overflowed():
    def trained(runs, loss_scale):
        variables = weights()
        optimizer = built(keras.optimizers.SGD(0.1), variables)
        sums = [tf.Variable(tf.zeros_like(v)) for v in variables]
        everything = [*variables, *optimizer.variables, *sums]
        begun = values_of(everything)
        with scaled_by(loss_scale):

            @tf.function
            def collect(x):
                slopes = gradients_of(variables, x)
                for total, slope in zip(sums, slopes, strict=True):
                    total.assign_add(slope)

            @tf.function
            def apply():
                optimizer.apply([s.read_value() for s in sums], variables)

            for batches in runs:
                for variable, value in zip(everything, begun, strict=True):
                    variable.assign(value)
                for x in batches:
                    collect(tf.constant(x))
                apply()
                yield values_of([*variables, *optimizer.variables])

    bad = X * np.float32(math.inf)
    (plain,) = trained([[X, -X]], NoOpLossScale())
    runs = [[X, bad, -X], [X, -X, bad], [bad, X, -X]]
    for found in trained(runs, DynamicLossScale(initial=2.0**10)):
        assert are_equal(plain, found)


def test_two_losses_may_have_scales_of_their_own():
    first, second = weights(), weights()
    optimizers = momentum(first), momentum(second)
    mine, other = (DynamicLossScale(initial=2.0**10) for _ in range(2))

    @tf.function
    def step(x):
        with scaled_by(mine):
            optimizers[0].apply(gradients_of(first, x), first)
        with scaled_by(other):
            optimizers[1].apply(gradients_of(second, X), second)

    check_skips(step, lambda: [*first, *optimizers[0].variables])
    assert int(optimizers[1].iterations) == 3
    assert figures(mine) == (2.0**9, 1, 1)
    assert figures(other)[0] == 2.0**10


def test_rows_of_a_table_stay():
    table = tf.Variable(X)
    optimizer = built(keras.optimizers.Adagrad(0.1), [table])
    with scaled_by(StaticLossScale(2.0**10)):

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [1, 1, 2]) * x[:3])
            optimizer.apply([tape.gradient(loss, table)], [table])

        check_skips(step, lambda: [table, *optimizer.variables])


def test_a_policy_that_nothing_scales_under_leaves_the_scaling_to_us():
    variables = weights()

    @tf.function
    def slopes(x):
        with tf.GradientTape() as tape:
            loss = loss_of(variables, x)
        return tape.gradient(loss, variables)

    keras.config.set_dtype_policy("mixed_float16")
    try:
        with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
            slopes(tf.constant(X))
            slopes(tf.constant(X * np.float32(math.inf)))
            assert figures(loss_scale) == (2.0**9, 0, 1)
    finally:
        keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_what_the_user_scales_is_not_scaled_again(policy):
    variables = weights()
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=8.0
    )
    optimizer.build(variables)
    keras.config.set_dtype_policy(policy)
    try:
        with scaled_by(DynamicLossScale()) as loss_scale:

            @tf.function
            def slopes(x):
                with tf.GradientTape() as tape:
                    loss = loss_of(variables, x)
                    loss = optimizer.scale_loss(loss) + 0.0
                return tape.gradient(loss, variables)

            scaled = slopes(tf.constant(X))
        true = gradients_of(variables, tf.constant(X))
        for one, other in zip(scaled, true, strict=True):
            np.testing.assert_allclose(one, 8.0 * other, rtol=1e-3)
        assert figures(loss_scale) == (1.0, 0, 0)
    finally:
        keras.config.set_dtype_policy("float32")


# What else a process has taken skips nothing, and hides nothing.


v1 = tf.compat.v1
BAD = X * np.float32(np.inf)


def decayed(slopes, variables):
    return [s + 0.1 * w for s, w in zip(slopes, variables, strict=True)]


def test_an_overflow_of_long_ago_skips_nothing():
    variables, optimizer = weights(), keras.optimizers.SGD(0.1)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        compute = tf.function(gradients_of)
        good = compute(variables, tf.constant(X))
        optimizer.apply(decayed(good, variables), variables)
        bad = compute(variables, tf.constant(BAD))
        optimizer.apply(decayed(bad, variables), variables)
        assert int(optimizer.iterations) == 1
        for _ in range(2):
            optimizer.apply(decayed(good, variables), variables)
    assert int(optimizer.iterations) == 3


def test_a_function_nested_in_a_graph_with_a_session_keeps_its_overflow():
    with tf.Graph().as_default(), scaled_by(DynamicLossScale(initial=2.0**10)):
        x = v1.placeholder(tf.float32, [None, 4])
        weight = v1.get_variable("w", [4, 1], use_resource=True)

        @tf.function
        def slopes(x):
            return tf.gradients(tf.reduce_mean((x @ weight) ** 2), [weight])

        optimizer = v1.train.AdamOptimizer(0.1)
        train = optimizer.apply_gradients([(slopes(x)[0] + 0.1 * weight, weight)])
        watched = [weight, *optimizer.variables()]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {x: X})
            before = session.run(watched)
            session.run(train, {x: BAD})
            assert are_equal(before, session.run(watched))
            session.run(train, {x: X})
            assert not are_equal(before, session.run(watched))


def test_what_knows_nothing_of_gradients_adds_nothing_to_a_step():
    variables, optimizer = weights(), keras.optimizers.SGD(0.1)
    optimizer.build(variables)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        clip = tf.function(lambda slopes: tf.clip_by_global_norm(slopes, 1.0)[0])

        @tf.function
        def step(x):
            optimizer.apply(clip(gradients_of(variables, x)), variables)

        check_skips(step, lambda: [*variables, *optimizer.variables])
        graph = step.get_concrete_function(tf.constant(X)).graph
    conditions = [op for op in graph.get_operations() if op.type.endswith("If")]
    # What notes the outcome, and the update.
    assert len(conditions) == 2


def test_scales_of_models_that_are_no_more_are_not_looked_at():
    """A search over settings trains one model after another in a process."""

    def train():
        model = weights()
        optimizer = momentum(model)
        with scaled_by(DynamicLossScale(initial=2.0**10)):
            optimizer.apply(gradients_of(model, tf.constant(X)), model)
            return len(states_in_use())

    counts = []
    for _ in range(4):
        counts.append(train())
        gc.collect()
    assert counts == [counts[0]] * 4


def test_gradients_that_nobody_scales_do_not_become_weights_after_an_inner_overflow():
    variable, optimizer = tf.Variable(tf.ones(4)), keras.optimizers.SGD(0.1)
    x = tf.fill(4, 1e3)
    scaled = mixed_precision_scope(loss_scale=StaticLossScale(2.0**126), opt_level="O0")
    unscaled = mixed_precision_scope(loss_scale="none", opt_level="O0")
    with unscaled, tf.GradientTape() as outer:
        with scaled, tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(variable * x * x)
        with scaled:
            slopes = inner.gradient(y, x)
        loss = tf.reduce_sum(slopes**2)
    with unscaled:
        optimizer.apply([outer.gradient(loss, variable)], [variable])
    np.testing.assert_array_equal(variable, np.ones(4))
