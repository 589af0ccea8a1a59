"""Every optimizer that TensorFlow and Keras ship skips a step, and trains on."""

import inspect
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.keras import optimizers as inner_optimizers

from tests.scaling import are_equal, figures, scaled_by, values_of
from tests.tf_amp.training.optimizers.test_exact_skip import adam_and_all
from tests.tf_amp.training.optimizers.test_exact_skip_in_graphs import (
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
    """Run good, bad and good steps; the bad one is to change nothing.

    Args:
      step: takes a factor of the loss.
      everything: returns each optimizer's variables by its name, the weight first.
    """
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        run = tf.function(step)
        run(tf.constant(1.0))
        before = {name: values_of(found) for name, found in everything().items()}
        run(tf.constant(math.inf))
        for name, found in everything().items():
            assert are_equal(before[name], values_of(found)), name
        run(tf.constant(1.0))
        assert figures(loss_scale) == (2.0**9, 1, 1)
    for name, found in everything().items():
        after = values_of(found)
        # The average of a weight may be what trains.
        assert not are_equal(before[name][:1], after[:1]), name
        assert all(np.isfinite(value).all() for value in after), name


def slopes_of(weights, x):
    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(weight**3) for weight in weights]) * x
    return tape.gradient(loss, weights)


def test_of_keras():
    optimizers = {name: getattr(keras.optimizers, name)(0.1) for name in KERAS}
    optimizers["with all"] = adam_and_all()
    optimizers["clipping"] = keras.optimizers.SGD(0.1, momentum=0.9, clipvalue=0.5)
    optimizers["accumulating"] = keras.optimizers.Adam(gradient_accumulation_steps=2)
    weights = {
        name: keras.Variable(np.eye(2, dtype=np.float32) + 1, name="kernel")
        for name in optimizers
    }
    for name, optimizer in optimizers.items():
        optimizer.build([weights[name]])

    def step(x):
        slopes = slopes_of([weight.value for weight in weights.values()], x)
        for (name, optimizer), slope in zip(optimizers.items(), slopes, strict=True):
            optimizer.apply([slope], [weights[name]])

    check(step, lambda: {n: [weights[n], *o.variables] for n, o in optimizers.items()})
    iterations = {name: int(one.iterations) for name, one in optimizers.items()}
    assert iterations == {**dict.fromkeys(optimizers, 2), "accumulating": 1}


def check_of_tf_keras(optimizers, variables_of):
    """Check optimizers, by name, that are given gradients as tf_keras does."""
    weights = {name: tf.Variable(tf.eye(2) + 1) for name in optimizers}

    def step(x):
        slopes = slopes_of([*weights.values()], x)
        for (name, weight), slope in zip(weights.items(), slopes, strict=True):
            optimizers[name].apply_gradients([(slope, weight)])

    def everything():
        return {
            name: [weights[name], *variables_of(optimizer)]
            for name, optimizer in optimizers.items()
        }

    for name, weight in weights.items():
        # Traced twice, as whatever makes variables is, Nadam divides by zero.
        if hasattr(optimizers[name], "build"):
            optimizers[name].build([weight])
    check(step, everything)


def test_of_tf_keras():
    kinds = tf_keras.optimizers
    made = {name: getattr(kinds, name)(0.1, jit_compile=False) for name in TF_KERAS}
    check_of_tf_keras(made, lambda optimizer: optimizer.variables)


@pytest.mark.parametrize(
    "kinds",
    [{name: getattr(tf_keras.optimizers.legacy, name) for name in LEGACY}, INNER],
    ids=["in_tf_keras", "within_tensorflow"],
)
def test_of_legacy_keras(kinds):
    made = {name: kind(0.1) for name, kind in kinds.items()}
    check_of_tf_keras(made, lambda optimizer: optimizer.variables())


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
        slopes = [
            *slopes_of([weights[0].value], x),
            *slopes_of([weights[1].value], 1.0),
        ]
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
