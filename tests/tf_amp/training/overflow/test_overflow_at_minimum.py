"""What overflows at the lowest loss scale goes back to float32, time and again."""

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import tf_amp
from tests.tf_amp.training.overflow.test_overflow_origin import (
    ONES,
    looked_into,
    ones,
    scaling,
    training_step,
)
from tf_amp.training import overflow_origin

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def test_at_the_minimum_each_new_origin_goes_back_to_float32():
    loss_scale, scope = scaling(initial=1.0, at_minimum="float32")
    weights = ones(3)

    @tf.function
    def step(x, by):
        with tf.GradientTape() as tape:
            y = x
            for number, weight in enumerate(weights, start=1):
                with tf.name_scope(f"layer{number}"):
                    factor = by[number - 1]
                    y = tf.nn.relu(tf.matmul(y * factor, weight * factor)) / factor**2
            loss = tf.reduce_mean(y * y)
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(1e-9 * slope)
        return loss

    losses = []
    with scope:
        for planted in (1, 1, 0, 0, 2, 2):
            by = np.ones([3], "float32")
            by[planted] = 300.0
            losses.append(float(step(tf.constant(ONES / 8), tf.constant(by))))
            overflow_origin.latest_origin(loss_scale)
    # One step each leads to the decision.
    assert np.isinf(losses[::2]).all()
    np.testing.assert_allclose(losses[1::2], 64.0**2, rtol=1e-2)
    assert tf_amp.loss_scale_state(loss_scale).skipped_steps == 3
    low = {r.slot.node for r in tf_amp.plans()[-1].decisions if r.is_low}
    assert not {f"layer{number}/MatMul" for number in (1, 2, 3)} & low


def test_at_the_minimum_few_overflows_are_looked_into_that_nothing_helps(monkeypatch):
    looked = looked_into(monkeypatch)
    loss_scale, scope = scaling(initial=1.0, at_minimum="float32")
    weights = ones(2)
    with scope:
        step = training_step(weights, planted=None)
        for _ in range(9):
            step(tf.constant(ONES * np.float32("inf")))
            overflow_origin.latest_origin(loss_scale)
    # The first sends back what it can, the second the product by the name that it has
    # where it is not fused, the third finds no more; 4th and 8th.
    assert len(looked) <= 5


@pytest.mark.parametrize("at_minimum", ["warn", "raise", "float32"])
def test_at_the_minimum_nothing_is_done_under_xla_and_said_if_it_was_asked_for(
    at_minimum, monkeypatch
):
    told = []

    def log_first_n(level, message, count, *args):
        told.append(message % args)

    monkeypatch.setattr(logging, "log_first_n", log_first_n)
    loss_scale, scope = scaling(initial=1.0, at_minimum=at_minimum)

    @tf.function(jit_compile=True)
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    with scope:
        assert float(slope(tf.constant(np.inf))) == np.inf
    assert tf_amp.loss_scale_state(loss_scale).skipped_steps == 1
    said = [line for line in told if f"at_minimum={at_minimum!r} has no effect" in line]
    assert len(said) == (at_minimum != "warn")
