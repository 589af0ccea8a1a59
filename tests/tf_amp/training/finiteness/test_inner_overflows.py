"""An overflow of inner gradients skips what is made of gradients of them."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import figures, scaled_by
from tf_amp import StaticLossScale, mixed_precision_scope

GOOD, BAD = np.full(4, 1e-3, np.float32), np.full(4, 1e3, np.float32)
# By it inner gradients of BAD overflow, and outer ones do not.
SCALE = 2.0**126


def in_a_branch(penalty, x):
    return tf.cond(tf.size(x) > 0, lambda: penalty(x), lambda: 0.0)


def in_a_loop(penalty, x):
    def body(i, _):
        return i + 1, penalty(x)

    return tf.while_loop(lambda i, _: i < 1, body, (0, 0.0))[1]


def in_a_function(penalty, x):
    return tf.function(penalty)(x)


def in_a_function_with_a_branch(penalty, x):
    return tf.function(functools.partial(in_a_branch, penalty))(x)


def here(penalty, x):
    return penalty(x)


PLACES = [here, in_a_function, in_a_function_with_a_branch, in_a_branch, in_a_loop]
EAGER = [(place, lambda f: f) for place in PLACES[:3]]
TRACED = [(place, tf.function) for place in PLACES]
COMPILED = [(here, functools.partial(tf.function, jit_compile=True))]
# Alone, or in company of a gradient that is finite.
CASES = [
    *((place, build, 1.0) for place, build in [*EAGER, *TRACED, *COMPILED]),
    *((place, build, 0.0) for place, build in [EAGER[0], TRACED[1], TRACED[4]]),
]


@pytest.mark.parametrize(("place", "build", "company"), CASES)
def test_a_penalty_that_overflows_skips_the_step(place, build, company):
    variable, optimizer = tf.Variable(tf.ones(4)), keras.optimizers.SGD(0.1)
    optimizer.build([variable])

    def penalty(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(variable * x * x)
        return tf.reduce_sum((tape.gradient(y, x) - 1.0) ** 2)

    @build
    def step(x):
        with tf.GradientTape() as tape:
            loss = place(penalty, x)
            if company:
                loss += company * tf.reduce_sum(variable**2)
        optimizer.apply([tape.gradient(loss, variable)], [variable])

    with scaled_by(StaticLossScale(SCALE)) as loss_scale:
        for x, counted in ((GOOD, (SCALE, 2, 0)), (BAD, (SCALE, 0, 1))):
            step(tf.constant(x))
            assert figures(loss_scale) == counted
            assert int(optimizer.iterations) == 1
        step(tf.constant(GOOD))
        assert int(optimizer.iterations) == 2


def test_gradients_that_nobody_scales_do_not_become_weights_after_an_inner_overflow():
    variable, optimizer = tf.Variable(tf.ones(4)), keras.optimizers.SGD(0.1)
    x = tf.constant(BAD)
    scaled = mixed_precision_scope(loss_scale=StaticLossScale(SCALE), opt_level="O0")
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
