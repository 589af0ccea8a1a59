"""A loss scale that float16 cannot hold does no harm where its gradients fit."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.planning.plan import Cause
from tf_amp import StaticLossScale, loss_scale_state

v1 = tf.compat.v1
SCALE = 2.0**24
X = 0.01 * np.random.default_rng(0).normal(size=(256, 64)).astype(np.float32)
W = 0.1 * np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)

LOSSES = {
    "a mean": tf.reduce_mean,
    "mean squares": lambda y: tf.reduce_mean(tf.square(y - 1.0)),
    "a mean and weight decay": lambda y: tf.reduce_mean(y) + 1e-6 * tf.nn.l2_loss(y),
}


pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def gradient_of(loss, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        total = loss(tf.nn.relu(tf.matmul(X, w)) @ w)
    return tape.gradient(total, w)


def near(got, expected):
    # Three products in a row, each rounded to 11 bits.
    distance = np.linalg.norm(np.asarray(got) - np.asarray(expected))
    assert distance <= 2**-8 * np.linalg.norm(np.asarray(expected))


@pytest.mark.parametrize("level", ["O2", "O3"])
@pytest.mark.parametrize("name", LOSSES)
def test_what_the_seed_meets_before_the_first_product_stays_float32(name, level):
    expected = gradient_of(LOSSES[name], tf.constant(W))
    loss_scale = StaticLossScale(SCALE)
    with tf_amp.mixed_precision_scope(
        "float16", loss_scale=loss_scale, opt_level=level
    ):
        got = tf.function(lambda w: gradient_of(LOSSES[name], w))(tf.constant(W))
    near(got, expected)
    assert loss_scale_state(loss_scale).skipped_steps == 0
    rows = tf_amp.plans()[-1].decisions
    assert any(row.reason.cause is Cause.LOSS_SCALE for row in rows)
    # All products of the backward pass are low nevertheless.
    products = [row for row in rows if row.op == "MatMul"]
    assert len(products) >= 4 and all(row.is_low for row in products)


def test_the_same_holds_in_a_session():
    expected = gradient_of(tf.reduce_mean, tf.constant(W))
    scope = tf_amp.mixed_precision_scope(
        "float16", loss_scale=StaticLossScale(SCALE), opt_level="O2"
    )
    with tf.Graph().as_default(), scope:
        w = v1.get_variable("w", initializer=W)
        (slope,) = tf.gradients(tf.reduce_mean(tf.nn.relu(tf.matmul(X, w)) @ w), w)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            near(session.run(slope), expected)


def test_bfloat16_holds_every_scale_and_is_left_alone():
    with tf_amp.mixed_precision_scope(
        "bfloat16", loss_scale=StaticLossScale(SCALE), opt_level="O2"
    ):
        tf.function(lambda w: gradient_of(tf.reduce_mean, w))(tf.constant(W))
    rows = tf_amp.plans()[-1].decisions
    assert not any(row.reason.cause is Cause.LOSS_SCALE for row in rows)
