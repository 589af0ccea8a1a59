"""Gradients in a `tf.Graph` come out in true units, however they are asked for."""

import gc
import math
import weakref

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import scaled_by
from tests.tf_amp.training.optimizers.test_exact_skip_in_graphs import figures
from tests.ways_to_gradients import IN_SESSIONS, through_python
from tf_amp import DynamicLossScale

v1 = tf.compat.v1
W = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
BAD_W, BAD_X = W * np.float32(math.nan), X * np.float32(math.inf)

# In one run, each of these adjusts the scale for itself: nothing says that they belong
# to one step, as an optimizer would.
SEVERAL = {"with_a_persistent_tape": 3, "by_tf_gradients": 4}


def graph_of(way):
    """Return what is fed, and the gradients as a flat list."""
    w, x = (v1.placeholder(tf.float32, value.shape) for value in (W, X))
    return (w, x), [part for part in tf.nest.flatten(way(w, x)) if part is not None]


def plain_results(way):
    with tf.Graph().as_default(), v1.Session() as session:
        (w, x), fetched = graph_of(way)
        return session.run(fetched, {w: W, x: X})


@pytest.mark.parametrize(
    "way", [*IN_SESSIONS, through_python], ids=lambda way: way.__name__
)
def test_gradients_are_those_without_scaling_before_and_after_an_overflow(way):
    expected = plain_results(way)

    def run(w, x):
        values = session.run(fetched, dict(zip(fed, (w, x), strict=True)))
        assert len(values) == len(expected)
        return values

    def same(values):
        for one, other in zip(expected, values, strict=True):
            np.testing.assert_array_equal(one, other)

    with (
        tf.Graph().as_default(),
        scaled_by(DynamicLossScale(initial=2.0**12)),
        v1.Session() as session,
    ):
        fed, fetched = graph_of(way)
        session.run(v1.global_variables_initializer())
        same(run(W, X))
        scale, good, skipped = figures(session)
        assert (scale, skipped) == (2.0**12, 0) and good > 0
        bad = run(BAD_W, BAD_X)
        assert not all(np.isfinite(v).all() for v in bad if v.dtype.kind in "fc")
        lowered, _, skipped = figures(session)
        assert skipped == SEVERAL.get(way.__name__, 1)
        assert lowered == scale / 2**skipped
        same(run(W, X))
        assert figures(session)[::2] == (lowered, skipped)


@pytest.mark.parametrize("initialized", [False, True], ids=["fresh", "initialized"])
def test_a_function_takes_gradients_where_nobody_has_initialized_the_scale(initialized):
    @tf.function
    def slope(x):
        return tf.gradients(3.0 * x, x)[0]

    with (
        tf.Graph().as_default(),
        scaled_by(DynamicLossScale(initial=2.0**12)),
        v1.Session() as session,
    ):
        fetched = slope(tf.constant(X))
        if initialized:
            session.run(v1.global_variables_initializer())
        for count in (1, 2):
            np.testing.assert_array_equal(session.run(fetched), np.full_like(X, 3.0))
            assert figures(session) == (2.0**12, count, 0)


def test_a_graph_in_which_gradients_were_taken_ends_with_its_program():
    with scaled_by(DynamicLossScale()):
        with tf.Graph().as_default() as graph:
            x = tf.constant(X)
            tf.gradients(3.0 * x, x)
        gone = weakref.ref(graph)
        del graph, x
        gc.collect()
    assert gone() is None
