"""Every optimizer that TensorFlow and Keras ship skips a step, and trains on."""

import inspect
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.keras import optimizers as inner_optimizers

from tests.scaling import are_equal, figures, scaled_by, values_of
from tests.tf_amp.training.test_exact_skip_in_graphs import (
    BAD,
    X,
    a_graph,
    batch,
    check_skips,
    loss_of,
)
from tf_amp import DynamicLossScale

tf_keras = pytest.importorskip("tf_keras")
v1 = tf.compat.v1


def names_in(module, base, without=()):
    """Return the names of a module's optimizers."""
    return sorted(
        name
        for name, found in vars(module).items()
        if inspect.isclass(found)
        and issubclass(found, base)
        and found is not base
        and name not in without
    )


# What scales losses by itself is left alone; that of several is made of others.
KERAS = names_in(
    keras.optimizers,
    keras.optimizers.Optimizer,
    without=("LossScaleOptimizer", "MultiOptimizer"),
)
TF_KERAS = names_in(tf_keras.optimizers, tf_keras.optimizers.Optimizer)
LEGACY = names_in(tf_keras.optimizers.legacy, tf_keras.optimizers.legacy.Optimizer)
# A copy of Keras 2 that TensorFlow keeps for itself, and some programs use.
INNER = {
    cls.__name__: cls
    for cls in (
        inner_optimizers.adadelta_v2.Adadelta,
        inner_optimizers.adagrad_v2.Adagrad,
        inner_optimizers.adam_v2.Adam,
        inner_optimizers.adamax_v2.Adamax,
        inner_optimizers.ftrl.Ftrl,
        inner_optimizers.gradient_descent_v2.SGD,
        inner_optimizers.nadam_v2.Nadam,
        inner_optimizers.rmsprop_v2.RMSprop,
    )
}
# Others push gradients to a queue: see the tests of workers.
V1 = names_in(v1.train, v1.train.Optimizer, without=("SyncReplicasOptimizer",))


def check(step, everything):
    """Run good, bad and good steps; the bad one is to change nothing."""
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        run = tf.function(step)
        run(tf.constant(1.0))
        before = values_of(everything())
        run(tf.constant(math.inf))
        assert are_equal(before, values_of(everything()))
        run(tf.constant(1.0))
        assert figures(loss_scale) == (2.0**9, 1, 1)
    after = values_of(everything())
    # The first is the weight, whose average may be what trains.
    assert not are_equal(before[:1], after[:1])
    assert all(np.isfinite(value).all() for value in after)


def slopes_of(weight, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(weight**3) * x
    return tape.gradient(loss, weight)


@pytest.mark.parametrize("name", KERAS)
def test_of_keras(name):
    weight = keras.Variable(np.eye(2, dtype=np.float32) + 1, name="kernel")
    optimizer = getattr(keras.optimizers, name)(0.1)

    def step(x):
        optimizer.apply([slopes_of(weight.value, x)], [weight])

    check(step, lambda: [weight, *optimizer.variables])


@pytest.mark.parametrize("name", TF_KERAS)
def test_of_tf_keras(name):
    weight = tf.Variable(tf.eye(2) + 1)
    optimizer = getattr(tf_keras.optimizers, name)(0.1, jit_compile=False)
    # Traced twice, as whatever makes variables is, Nadam divides by zero.
    optimizer.build([weight])

    def step(x):
        optimizer.apply_gradients([(slopes_of(weight, x), weight)])

    check(step, lambda: [weight, *optimizer.variables])


@pytest.mark.parametrize("name", LEGACY)
def test_of_tf_keras_legacy(name):
    weight = tf.Variable(tf.eye(2) + 1)
    optimizer = getattr(tf_keras.optimizers.legacy, name)(0.1)

    def step(x):
        optimizer.apply_gradients([(slopes_of(weight, x), weight)])

    check(step, lambda: [weight, *optimizer.variables()])


@pytest.mark.parametrize("name", INNER)
def test_of_the_keras_within_tensorflow(name):
    weight = tf.Variable(tf.eye(2) + 1)
    optimizer = INNER[name](0.1)

    def step(x):
        optimizer.apply_gradients([(slopes_of(weight, x), weight)])

    check(step, lambda: [weight, *optimizer.variables()])


@pytest.mark.parametrize("name", V1)
def test_of_version_1(name):
    made = getattr(v1.train, name)
    more = {"MomentumOptimizer": [0.9]}.get(name, [])
    with a_graph(DynamicLossScale(initial=2.0**10)):
        x, step = batch(), v1.train.get_or_create_global_step()
        if name == "AdagradDAOptimizer":
            more = [step]
        train = made(0.1, *more).minimize(loss_of(x), global_step=step)
        assert isinstance(train, tf.Operation)
        assert check_skips(train, {x: X}, {x: BAD}) == (2.0**9, 1, 1)


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="a Keras without it"
)
def test_of_keras_made_of_several():
    optimizers = keras.optimizers
    start = np.eye(2, dtype=np.float32) + 1
    weights = [keras.Variable(start, name=name) for name in ("first", "second")]
    chosen = optimizers.OptimizerMap(default_optimizer=optimizers.SGD(0.1))
    chosen["second"] = optimizers.Adam(0.1)
    optimizer = optimizers.MultiOptimizer(chosen)
    optimizer.build(weights)

    def step(x):
        # Of two calls for gradients, only the first may overflow.
        slopes = [slopes_of(weights[0].value, x), slopes_of(weights[1].value, 1.0)]
        optimizer.apply(slopes, weights)

    with scaled_by(DynamicLossScale(initial=2.0**10)):
        run = tf.function(step)
        run(tf.constant(1.0))
        before = values_of([*weights, *optimizer.variables])
        run(tf.constant(math.inf))
        assert are_equal(before, values_of([*weights, *optimizer.variables]))
        run(tf.constant(1.0))
    assert int(optimizer.iterations) == 2
    assert [int(one.iterations) for one in optimizer._inner_optimizers] == [2, 2]
