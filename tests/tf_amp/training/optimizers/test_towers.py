"""Towers of one step in a `tf.Graph` adjust the loss scale together, and once."""

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import are_equal
from tests.tf_amp.training.optimizers.test_exact_skip_in_graphs import (
    BAD,
    X,
    a_graph,
    batch,
    check_skips,
    figures,
    loss_of,
    of_program,
)
from tf_amp import DynamicLossScale, StatisticalLossScale

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
