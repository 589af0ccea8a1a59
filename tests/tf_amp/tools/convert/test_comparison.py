"""How a function is compared with its conversion, on the same inputs."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests import planted
from tf_amp.tools.convert.models import compared


def double(x):
    return {"twice": 2.0 * x, "count": tf.size(x)}


def compared_with_double(mixed):
    inputs = {"x": np.asarray(planted.rows())}
    return compared(double, mixed, inputs, low_dtype="bfloat16", name="double")


def test_two_callables_are_compared_by_the_names_of_their_results():
    near = compared_with_double(
        lambda x: double(tf.cast(tf.cast(x, tf.bfloat16), tf.float32))
    )
    assert {c.name for c in near.checks} == {"twice", "count"}
    assert near.ok
    far = compared_with_double(lambda x: double(-x))
    assert [c.name for c in far.failing] == ["twice"]
    assert far.failing[0].mixed.cosine == pytest.approx(-1.0)


def test_weights_are_rounded_for_one_run_and_then_what_they_were():
    weight = tf.Variable(1.0 + 2.0**-9)
    seen: list[float] = []

    def scaled(x):
        seen.append(float(weight))
        return x * weight

    found = compared(
        scaled,
        scaled,
        {"x": np.ones((2, 2), np.float32)},
        low_dtype="bfloat16",
        name="scaled",
        variables=[weight],
    )
    (check,) = found.checks
    assert check.rounded is not None and check.rounded.relative > 0.0
    assert seen[-1] == 1.0 and {*seen[:-1]} == {1.0 + 2.0**-9}
    assert float(weight) == 1.0 + 2.0**-9
