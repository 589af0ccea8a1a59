"""Gradients taken in vectorized loops are checked after them, and nothing else is."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import figures, scaled_by
from tf_amp import LossScale, StaticLossScale


class AsLargeAsGradients(LossScale):
    """Becomes what the largest gradient was."""

    def initial_state(self):
        return {"scale": 4.0}

    def adjust(self, state, seen):
        return {"scale": seen.largest()} if seen.finite else {}


def of_one(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = 1024.0 + x * x
    slope = tape.gradient(y, x)
    return {"slope": slope, "y": y, "twice": [2.0 * slope], "rows": x}


def per_row(x):
    return tf.vectorized_map(of_one, x)


def per_value(x):
    return tf.vectorized_map(per_row, x)


@pytest.mark.parametrize("build", [tf.function, lambda f: f])
@pytest.mark.parametrize("loop", [per_row, per_value])
def test_results_that_are_no_gradients_stay_and_say_nothing_of_gradients(loop, build):
    x = np.array([[1.0, 2.0], [0.5, 4.0]], np.float32)
    bad = np.array([[1.0, math.inf], [0.5, 4.0]], np.float32)
    call = build(loop)
    with scaled_by(AsLargeAsGradients()) as loss_scale:
        call(tf.constant(x))
        assert figures(loss_scale) == (16.0, 1, 0)
    call = build(loop)
    with scaled_by(StaticLossScale(4.0)) as loss_scale:
        for values, is_finite in ((x, 1), (bad, 0)):
            found = call(tf.constant(values))
            assert figures(loss_scale)[1:] == (is_finite, 1 - is_finite)
            np.testing.assert_array_equal(found["slope"], 2 * values)
            np.testing.assert_array_equal(found["twice"][0], 4 * values)
            np.testing.assert_array_equal(found["y"], 1024 + values * values)
            np.testing.assert_array_equal(found["rows"], values)
