"""What XLA's kernels on a GPU are charged for: passes over tensors, and starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.costs import CostModel, DeviceProfile, OpCall, TensorSpec

SIZE = 4096
PROFILE = DeviceProfile.load("h100").compiled()
ROOFLINE = PROFILE.roofline
MATRIX = TensorSpec((SIZE, SIZE), "float32")
PRODUCT = OpCall("MatMul", {}, (MATRIX, MATRIX), (MATRIX,))
# One tensor, read or written once.
PASS = SIZE * SIZE * 4 / ROOFLINE.bytes_per_second["float32"]


def normalized(x: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(x, 1, keepdims=True)
    variance = tf.reduce_mean(tf.square(x - mean), 1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def both_sides(x: tf.Tensor) -> tf.Tensor:
    """A gradient that a bias' gradient and a product read, as behind each layer."""
    gradient = x * (1.0 - tf.square(tf.tanh(x)))
    return tf.reduce_sum(gradient, 0) + gradient @ x


CASES: dict[str, tuple[Callable[[tf.Tensor], Any], int, float, int]] = {
    # Of what lies between two products: products, passes and kernels.
    "a chain is one kernel": (lambda x: tf.tanh(x * x + 1.0) @ x, 1, 2, 1),
    "a bias and a relu are part of the product": (
        lambda x: tf.nn.relu(x @ x + x[0]) @ x,
        2,
        0,
        0,
    ),
    "a transpose is part of a chain": (
        lambda x: tf.tanh(tf.transpose(x)) @ x,
        1,
        2,
        1,
    ),
    "statistics wait for one another": (lambda x: normalized(x) @ x, 1, 4, 3),
    "a sum reads through the chain": (lambda x: tf.reduce_sum(x * x + 1.0), 0, 1, 1),
    "a softmax reads and writes": (lambda x: tf.nn.softmax(x * 2.0) @ x, 1, 2, 1),
    "who reads the same tensor at once is one kernel": (both_sides, 1, 2, 1),
}


def predicted(fn: Callable[..., Any], *args: Any) -> float:
    """Return the seconds in float32 of a function that XLA compiles for an H100."""
    compiled = tf.function(fn, jit_compile=True)
    plan = tf_amp.audit(compiled, *args, device_profile="h100").plan
    return float(plan.seconds_before)


@pytest.mark.parametrize("case", CASES)
def test_a_kernel_costs_what_it_reads_and_writes(case: str) -> None:
    fn, products, passes, kernels = CASES[case]
    product = CostModel(PROFILE).price(PRODUCT, "float32").seconds
    expected = products * product + passes * PASS
    expected += kernels * ROOFLINE.overhead_seconds
    whole = predicted(fn, tf.TensorSpec((SIZE, SIZE)))
    assert whole == pytest.approx(expected, rel=0.03)


def test_an_update_of_a_variable_is_one_kernel() -> None:
    shape = (SIZE, SIZE)
    variable, mean, square = (tf.Variable(tf.zeros(shape)) for _ in range(3))

    def step(gradient: tf.Tensor) -> None:
        mean.assign_add((gradient - mean) * 0.1)
        square.assign_add((tf.square(gradient) - square) * 0.01)
        variable.assign_sub(0.1 * mean / (tf.sqrt(square) + 1e-7))

    # The gradient and three variables are read, these are written.
    whole = predicted(step, tf.TensorSpec(shape))
    assert whole == pytest.approx(7 * PASS + ROOFLINE.overhead_seconds, rel=0.03)


def test_a_cast_is_free_beside_a_kernel_and_not_in_front_of_a_product() -> None:
    weight = tf.Variable(tf.zeros((SIZE, SIZE)))

    def step(x: tf.Tensor) -> tf.Tensor:
        value = weight.read_value()
        return tf.reduce_sum(tf.tanh(x @ value) @ value)

    fn = tf.function(step, jit_compile=True)
    plan = tf_amp.audit(fn, tf.TensorSpec((SIZE, SIZE)), device_profile="h100").plan
    products = [row for row in plan.decisions if row.op == "MatMul"]
    assert [row.is_low for row in products] == [True, True]
    # The weight is cast once for both, and the argument for the first.
    casts = sum(row.cast_seconds for row in plan.decisions)
    one = 1.5 * PASS + ROOFLINE.overhead_seconds
    assert casts == pytest.approx(2 * one, rel=0.03)


def test_products_in_float32_are_rounded_where_tensorflow_rounds_them() -> None:
    rounded = PROFILE.with_tensor_float_32(True), PROFILE.with_tensor_float_32(False)
    tf32, float32 = (
        CostModel(each).price(PRODUCT, "float32").seconds for each in rounded
    )
    assert float32 > 5 * tf32
    fn = tf.function(lambda x: x @ x, jit_compile=True)
    spec = tf.TensorSpec((SIZE, SIZE))
    enable = tf.config.experimental.enable_tensor_float_32_execution
    try:
        for is_on, seconds in ((False, float32), (True, tf32)):
            enable(is_on)
            plan = tf_amp.audit(fn, spec, device_profile="h100").plan
            assert plan.seconds_before == pytest.approx(seconds, rel=0.03)
    finally:
        enable(True)
