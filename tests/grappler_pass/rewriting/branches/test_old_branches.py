"""Gradients taken within branches and loops that are parts of one graph."""

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import scaled_by
from tf_amp import DynamicLossScale, loss_scale_state

v1 = tf.compat.v1
GOOD, BAD = np.ones(4, np.float32), np.full(4, np.inf, np.float32)


@pytest.fixture(autouse=True)
def old_control_flow():
    v1.disable_control_flow_v2()
    yield
    v1.enable_control_flow_v2()


def in_a_branch(compute, is_taken):
    return tf.cond(is_taken, compute, lambda: tf.zeros([4]))


def in_the_other_branch(compute, is_taken):
    return tf.cond(~is_taken, lambda: tf.zeros([4]), compute)


def in_two_branches(compute, is_taken):
    return in_a_branch(lambda: in_the_other_branch(compute, is_taken), is_taken)


def in_a_branch_of_a_loop(compute, is_taken):
    return in_a_loop(lambda: in_a_branch(compute, is_taken), is_taken)


def in_a_loop(compute, is_taken):
    rounds = tf.cast(is_taken, tf.int32)
    loop = (lambda i, _: i < rounds), (lambda i, total: (i + 1, total + compute()))
    return tf.while_loop(*loop, (0, tf.zeros([4])))[1]


BRANCHES = [in_a_branch, in_the_other_branch, in_two_branches]
LOOPS = [in_a_loop, in_a_branch_of_a_loop]


@pytest.mark.parametrize("place", [*BRANCHES, *LOOPS])
def test_gradients_of_a_branch_train_taken_or_not_and_skip_only_what_overflowed(place):
    with tf.Graph().as_default(), scaled_by(DynamicLossScale(initial=8.0)):
        weight = v1.get_variable("w", [4], initializer=tf.zeros_initializer())
        is_taken, x = v1.placeholder(tf.bool, []), v1.placeholder(tf.float32, [4])
        main = tf.gradients(tf.reduce_sum(weight), weight)[0]
        loss = tf.reduce_sum(weight * x)
        more = place(lambda: tf.gradients(loss, weight)[0], is_taken)
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        train = optimizer.apply_gradients([(main + more, weight)])
        steps = {(False, 0): 1.0, (True, 0): 2.0, (True, 1): 0.0}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for (taken, bad), expected in steps.items():
                before = session.run(weight)
                session.run(train, {is_taken: taken, x: BAD if bad else GOOD})
                np.testing.assert_array_equal(before - session.run(weight), expected)
            assert loss_scale_state(session=session).skipped_steps == 1
