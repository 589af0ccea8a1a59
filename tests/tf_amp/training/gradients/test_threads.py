"""Threads that take gradients at once are scaled, and count, as one after the other."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import clipped, figures, scaled_by
from tf_amp import DynamicLossScale

THREADS, CALLS = 3, 50
X = tf.constant([0.5, -3.0, 2.0, 0.25])


def in_threads(work):
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def gradient_of(layer):
    with tf.GradientTape() as tape:
        tape.watch(X)
        loss = tf.reduce_sum(layer(X) ** 2)
    return tape.gradient(loss, X)


@pytest.mark.parametrize("layer", [tf.function(clipped), tf.function(tf.identity)])
def test_gradients_taken_in_several_threads_are_true_and_all_counted(layer):
    loss_scale = DynamicLossScale(initial=2.0**10)
    wrong = []

    def work():
        for _ in range(CALLS):
            gradient = gradient_of(layer)
            if not np.array_equal(gradient, expected):
                wrong.append(gradient)

    with scaled_by(loss_scale):
        expected = gradient_of(layer)
        in_threads(work)
        assert not wrong
        assert figures(loss_scale) == (2.0**10, 1 + THREADS * CALLS, 0)


def test_functions_in_several_threads_grow_the_scale_once():
    loss_scale = DynamicLossScale(initial=2.0**4, growth_interval=25)
    step = tf.function(lambda: gradient_of(tf.identity))
    with scaled_by(loss_scale):
        step()
        in_threads(lambda: [step() for _ in range(CALLS)])
        scale, good, skipped = figures(loss_scale)
    grown = int(np.log2(scale)) - 4
    assert skipped == 0
    assert 5 <= grown <= 6
    assert good <= 50
