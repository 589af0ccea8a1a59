"""Overflows are logged of where no optimizer would skip the step."""

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import scaled_by, stepper
from tf_amp import StaticLossScale
from tf_amp.training import optimizers

v1 = tf.compat.v1


def slope(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    return tape.gradient(y, x)


def in_session(x):
    with tf.Graph().as_default(), v1.Session() as session:
        fed = v1.placeholder(tf.float32, [])
        return session.run(tf.gradients(fed * fed, fed), {fed: x.numpy()})[0]


WAYS = {"eager": slope, "function": tf.function(slope), "session": in_session}


@pytest.mark.parametrize("name", WAYS)
def test_gradients_that_overflow_are_told_of(name, logged):
    with scaled_by(StaticLossScale(1024.0)):
        assert WAYS[name](tf.constant(3.0)) == 6.0
        assert logged == []
        assert WAYS[name](tf.constant(np.inf)) == np.inf
    said = [line.split(":")[0] for line in logged if line.endswith("(AMP301)")]
    assert said == ["Gradients overflowed at loss scale 1024"]


def test_where_an_optimizer_skips_steps_nothing_is_said(logged, monkeypatch):
    monkeypatch.setattr(optimizers, "_applied", [True])
    with scaled_by(StaticLossScale(1024.0)):
        assert slope(tf.constant(np.inf)) == np.inf
    assert logged == []


def test_a_step_that_is_looked_into_holds_no_constant_that_nothing_reads():
    step = stepper(StaticLossScale(1024.0))
    graph = step.get_concrete_function(tf.TensorSpec([], tf.float32)).graph
    constants = [op for op in graph.get_operations() if op.type == "Const"]
    unread = [op.name for op in constants if not op.outputs[0].consumers()]
    assert not unread
