"""Steps that overflow in a `tf.Graph` and its Session change nothing."""

import contextlib
import math

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import are_equal, scaled_by
from tf_amp import (
    ConfigError,
    DynamicLossScale,
    NoOpLossScale,
    StatisticalLossScale,
    loss_scale_state,
)
from tf_amp.training.scale_state import PREFIX

v1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
BAD = X * np.float32(math.inf)


@contextlib.contextmanager
def a_graph(loss_scale):
    with tf.Graph().as_default() as graph, scaled_by(loss_scale):
        v1.set_random_seed(1)
        yield graph


@contextlib.contextmanager
def reference_variables():
    v1.disable_resource_variables()
    try:
        yield
    finally:
        v1.enable_resource_variables()


def on_request():
    return v1.variable_scope(v1.get_variable_scope(), use_resource=False)


def loss_of(x):
    with v1.variable_scope("model", reuse=v1.AUTO_REUSE):
        first = v1.get_variable("first", [4, 8])
        last = v1.get_variable("last", [8, 1])
    total = tf.reduce_sum(x, axis=1, keepdims=True)
    return tf.reduce_mean((tf.tanh(x @ first) @ last - total) ** 2)


def batch():
    return v1.placeholder(tf.float32, [None, 4])


def figures(session):
    state = loss_scale_state(session=session)
    return state.scale, state.good_steps, state.skipped_steps


def of_program():
    """Return all global variables but the loss scale's state."""
    return [v for v in v1.global_variables() if not v.name.startswith(PREFIX)]


def check_skips(train, feed, bad_feed):
    """Run good, bad and good steps; return the figures after the last."""
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(train, feed)
        before = session.run(of_program())
        session.run(train, bad_feed)
        assert are_equal(before, session.run(of_program()))
        session.run(train, feed)
        after = session.run(of_program())
        assert not are_equal(before, after)
        assert all(np.isfinite(value).all() for value in after)
        return figures(session)


@pytest.mark.parametrize("references", [reference_variables, on_request])
def test_reference_variables_stay(references):
    with a_graph(DynamicLossScale(initial=2.0**10)), references():
        x, step = batch(), v1.train.get_or_create_global_step()
        optimizer = v1.train.AdamOptimizer(0.1)
        train = optimizer.minimize(loss_of(x), global_step=step)
        assert "_ref" in v1.trainable_variables()[0].dtype.name
        assert check_skips(train, {x: X}, {x: BAD}) == (2.0**9, 1, 1)


def test_an_average_of_weights_follows_applied_steps_only():
    def averages(batches):
        with a_graph(DynamicLossScale(initial=2.0**10)):
            x, optimizer = batch(), v1.train.GradientDescentOptimizer(0.1)
            train = optimizer.minimize(loss_of(x))
            average = v1.train.ExponentialMovingAverage(0.5)
            with tf.control_dependencies([train]):
                both = average.apply(v1.trainable_variables())
            shadows = [average.average(v) for v in v1.trainable_variables()]
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                for value in batches:
                    session.run(both, {x: value})
                return session.run([*v1.trainable_variables(), *shadows])

    # The average is the program's own, and moves on; what it averages stays.
    weights = averages([X, X])[:2]
    got = averages([X, X, BAD])
    assert are_equal(weights, got[:2])
    assert all(np.isfinite(value).all() for value in got)


@pytest.mark.parametrize("order", ["value norm global", "global norm value"])
def test_gradients_may_be_clipped_in_any_order(order):
    clip = {
        "value": lambda slopes: [tf.clip_by_value(s, -0.1, 0.1) for s in slopes],
        "norm": lambda slopes: [tf.clip_by_norm(s, 0.5) for s in slopes],
        "global": lambda slopes: tf.clip_by_global_norm(slopes, 0.3)[0],
    }

    def trained(loss_scale, batches):
        with a_graph(loss_scale):
            x, optimizer = batch(), v1.train.MomentumOptimizer(0.1, 0.9)
            pairs = optimizer.compute_gradients(
                loss_of(x), colocate_gradients_with_ops=True
            )
            slopes, variables = zip(*pairs, strict=True)
            for word in order.split():
                slopes = clip[word](slopes)
            train = optimizer.apply_gradients(zip(slopes, variables, strict=True))
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                for value in batches:
                    session.run(train, {x: value})
                return session.run(list(variables))

    plain = trained(NoOpLossScale(), [X, X])
    assert are_equal(plain, trained(DynamicLossScale(), [X, BAD, X]))


def test_two_losses_in_one_run_share_a_scale_that_no_overflow_is_lost_on():
    with a_graph(DynamicLossScale(initial=2.0**10)):
        inputs, trains = [batch(), batch()], []
        for number, x in enumerate(inputs):
            with v1.variable_scope(f"network{number}"):
                optimizer = v1.train.GradientDescentOptimizer(0.1)
                trains.append(optimizer.minimize(loss_of(x)))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for number in range(6):
                values = [X, BAD] if number % 2 else [BAD, X]
                session.run(trains, dict(zip(inputs, values, strict=True)))
            scale, _, skipped = figures(session)
    assert (scale, skipped) == (2.0**4, 6)


def test_the_state_of_a_graph_is_read_through_its_session():
    with a_graph(DynamicLossScale()) as graph:
        x = batch()
        tf.gradients(loss_of(x), [x])
        with pytest.raises(ConfigError, match="pass the Session"):
            loss_scale_state()
        with v1.Session(graph=graph):
            assert loss_scale_state().scale == 2.0**15


def test_a_loss_scaled_by_a_wrapper_of_tensorflow_is_left_to_it():
    with a_graph(DynamicLossScale(initial=2.0**10)):
        wrap = v1.mixed_precision.enable_mixed_precision_graph_rewrite
        optimizer = wrap(v1.train.GradientDescentOptimizer(0.1), loss_scale=8.0)
        x = batch()
        train = optimizer.minimize(loss_of(x))
        names = [op.name for op in v1.get_default_graph().get_operations()]
        assert not any("tf_amp_loss_scale" in name for name in names)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {x: X})
    tf.config.optimizer.set_experimental_options({"auto_mixed_precision": False})


def test_two_losses_of_a_graph_need_not_be_fed_together():
    with a_graph(DynamicLossScale(initial=2.0**10)):
        placeholders = [v1.placeholder(tf.float32, (None, 4)) for _ in range(2)]
        weight = v1.get_variable("w", (4, 1), use_resource=True)
        steps = [
            v1.train.GradientDescentOptimizer(0.1).minimize(
                tf.reduce_mean((x @ weight) ** 2)
            )
            for x in placeholders
        ]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for step, x in zip(steps, placeholders, strict=True):
                session.run(step, {x: X})
                session.run(step, {x: BAD})
            assert loss_scale_state().skipped_steps == 2


def test_gradients_of_gradients_do_not_wait_for_each_other():
    with a_graph(DynamicLossScale(initial=2.0**10)), v1.Session() as session:
        x = batch()
        slope = tf.gradients(tf.reduce_sum(x**3), x)[0]
        curvature = tf.gradients(slope, x)[0]
        session.run(v1.global_variables_initializer())
        patience = v1.RunOptions(timeout_in_ms=60_000)
        for _ in range(10):
            found = session.run(curvature, {x: X}, options=patience)
    np.testing.assert_allclose(found, 6 * X, rtol=1e-5)


# Towers of one step in a graph adjust the loss scale together, and once.


v1 = tf.compat.v1
# Whatever waits for itself shall not stop the tests.
PATIENCE = v1.RunOptions(timeout_in_ms=20_000)


def pairs_of_towers(towers, optimizer):
    """Return for each tower its gradients with their variables."""
    with tf.device("/CPU:0"):
        return [optimizer.compute_gradients(loss_of(x)) for x in towers]


def averaged(pairs):
    return [
        (tf.add_n([slope for slope, _ in column]) / len(column), column[0][1])
        for column in zip(*pairs, strict=True)
    ]


@pytest.mark.parametrize("bad_towers", [(0,), (1,), (0, 1)])
def test_an_overflow_in_any_tower_skips_all_and_halves_once(bad_towers):
    with a_graph(DynamicLossScale(initial=2.0**10)):
        optimizer, towers = v1.train.AdamOptimizer(0.1), [batch(), batch()]
        pairs = pairs_of_towers(towers, optimizer)
        train = optimizer.apply_gradients(averaged(pairs))
        feed = dict.fromkeys(towers, X)
        bad = {**feed, **{towers[i]: BAD for i in bad_towers}}
        assert check_skips(train, feed, bad) == (2.0**9, 1, 1)


@pytest.mark.parametrize("waits", [False, True])
def test_two_optimizers_of_the_same_towers_adjust_the_loss_scale_once(waits):
    with a_graph(DynamicLossScale(initial=2.0**10)), v1.Session() as session:
        optimizers = [v1.train.GradientDescentOptimizer(rate) for rate in (0.1, 0.01)]
        towers = [batch(), batch()]
        first, second = averaged(pairs_of_towers(towers, optimizers[0]))
        train = optimizers[0].apply_gradients([first])
        with tf.control_dependencies([train] if waits else []):
            both = tf.group(train, optimizers[1].apply_gradients([second]))
        session.run(v1.global_variables_initializer())
        session.run(both, dict.fromkeys(towers, X), options=PATIENCE)
        assert figures(session) == (2.0**10, 1, 0)
        before = session.run(of_program())
        session.run(both, dict(zip(towers, (X, BAD), strict=True)), options=PATIENCE)
        assert figures(session) == (2.0**9, 0, 1)
        assert are_equal(before, session.run(of_program()))


@pytest.mark.parametrize("sizes", [(1.0, 2.0**-6), (2.0**-6, 1.0)])
def test_a_statistical_scale_follows_the_largest_gradient_of_all_towers(sizes):
    scale = StatisticalLossScale(deviations=0.0)
    with a_graph(scale), v1.Session() as session:
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        weight = v1.get_variable("weight", initializer=1.0)
        pairs = [optimizer.compute_gradients(weight * size) for size in sizes]
        train = optimizer.apply_gradients(averaged(pairs))
        session.run(v1.global_variables_initializer())
        session.run(train, options=PATIENCE)
        assert figures(session) == (2.0**16, 1, 0)


def test_an_optimizer_of_more_towers_adjusts_the_loss_scale_for_all():
    with a_graph(DynamicLossScale(initial=2.0**10)), v1.Session() as session:
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        towers = [batch() for _ in range(3)]
        pairs = pairs_of_towers(towers, optimizer)
        train = optimizer.apply_gradients(averaged(pairs[:2])[:1])
        with tf.control_dependencies([train]):
            more = optimizer.apply_gradients(averaged(pairs[1:])[1:])
        session.run(v1.global_variables_initializer())
        for values in ((X, X, X), (BAD, X, X), (X, X, BAD), (X, BAD, X)):
            feed = dict(zip(towers, values, strict=True))
            session.run([train, more], feed, options=PATIENCE)
        assert figures(session) == (2.0**7, 0, 3)
        values = session.run(v1.trainable_variables())
        assert all(np.isfinite(value).all() for value in values)
