"""Steps are skipped for what overflowed in them, whatever else a process has taken."""

import gc

import keras
import numpy as np
import tensorflow as tf

from tests.scaling import are_equal, scaled_by
from tests.tf_amp.training.optimizers.test_exact_skip import (
    X,
    check_skips,
    gradients_of,
    momentum,
    weights,
)
from tf_amp import DynamicLossScale, StaticLossScale, mixed_precision_scope
from tf_amp.training.scale_state import states_in_use

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
