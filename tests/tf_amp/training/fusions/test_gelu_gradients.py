"""GELU in training keeps its derivative alone, and models learn the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.annotations import FUSED
from tests.tf_amp.training.fusions.test_fused_steps import assert_close, enabled

RULE = "gelu_gradients"
FEATURES = np.linspace(-7.0, 7.0, 4001, dtype=np.float32)
Gradients = Callable[[tf.Tensor], list[tf.Tensor]]

FORMULAS = pytest.mark.parametrize("approximate", [False, True], ids=["erf", "tanh"])


def gradient(x: tf.Tensor, approximate: bool = False) -> list[tf.Tensor]:
    """Return GELU and its gradient, the upstream one being a cosine."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.identity(tf.nn.gelu(x, approximate=approximate), name="activated")
    return [y, tape.gradient(y, x, output_gradients=tf.cos(x))]


def second_derivative(x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        slope = gradient(x)[1]
    return [tape.gradient(slope, x)]


def second_of_one_persistent_tape(x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        slope = tape.gradient(tf.nn.gelu(x), x)
    return [slope, tape.gradient(slope, x)]


def forward_over_reverse(x: tf.Tensor) -> list[tf.Tensor]:
    with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
        slope = gradient(x)[1]
    return [slope, accumulator.jvp(slope)]


def reverse_over_forward(x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as accumulator:
            y = tf.nn.gelu(x)
        slope = accumulator.jvp(y)
    return [slope, tape.gradient(slope, x)]


def of_a_function(x: tf.Tensor) -> list[tf.Tensor]:
    activation = tf.function(tf.nn.gelu, autograph=False)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = activation(x) * activation(x)
    return [y, tape.gradient(y, x)]


def in_a_loop(x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x
        for _ in tf.range(3):
            y = tf.nn.gelu(y)
    return [y, tape.gradient(y, x)]


def of_symbolic_gradients(x: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.gelu(x)
    return [*tf.gradients(y, x), tape.gradient(y, x)]


def computed(step: Gradients, fuse: str, **given: object) -> list[np.ndarray]:
    """Return what a function computes with some rules."""
    with enabled(fuse=fuse):
        traced = tf.function(step, **given)
        return [each.numpy() for each in traced(tf.constant(FEATURES))]


@FORMULAS
def test_values_and_gradients_are_as_exact_as_before(approximate: bool) -> None:
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return gradient(x, approximate)

    exact = step(tf.constant(FEATURES, tf.float64))
    # TensorFlow's erf is off by 1.5e-7, times the feature.
    rounding = 1.5e-7 * FEATURES.max()
    for mine, plain, right in zip(
        computed(step, RULE), computed(step, "off"), exact, strict=True
    ):
        error, before = (np.abs(each - right.numpy()).max() for each in (mine, plain))
        assert error <= before + rounding


@FORMULAS
@pytest.mark.parametrize(("fuse", "fewest", "most"), [("off", 3, 9), (RULE, 1, 1)])
def test_one_tensor_is_kept_for_the_gradient(
    approximate: bool, fuse: str, fewest: int, most: int
) -> None:
    with enabled(fuse=fuse):
        step = tf.function(lambda x: gradient(x, approximate), autograph=False)
        graph = step.get_concrete_function(tf.constant(FEATURES)).graph
    operations = graph.get_operations()
    end = operations.index(graph.get_operation_by_name("activated"))
    kept = {
        given.name
        for operation in operations[end + 1 :]
        for given in operation.inputs
        if given.op in operations[: end + 1]
        and given.op.type not in ("Placeholder", "Const", "Identity")
        and given.shape == FEATURES.shape
    }
    assert fewest <= len(kept) <= most


@pytest.mark.parametrize(
    "step",
    [
        second_derivative,
        second_of_one_persistent_tape,
        forward_over_reverse,
        reverse_over_forward,
        of_a_function,
        in_a_loop,
        of_symbolic_gradients,
    ],
)
def test_every_other_way_to_gradients_is_as_before(step: Gradients) -> None:
    assert_close(computed(step, RULE), computed(step, "off"), 2e-6)


def derivatives(step: Gradients, dtype: tf.DType = tf.float32, **given: object) -> int:
    """Return how often a function has the rule's product."""
    with enabled():
        function = tf.function(step, autograph=False, **given)
        graph = function.get_concrete_function(tf.TensorSpec([9], dtype)).graph
    return sum(FUSED in op.node_def.attr for op in graph.get_operations())


def test_it_is_for_float32_that_a_tape_records() -> None:
    assert derivatives(gradient) == 1
    assert derivatives(gradient, tf.float64) == 0
    assert derivatives(gradient, tf.bfloat16) == 0
    assert derivatives(gradient, jit_compile=True) == 0
    assert derivatives(lambda x: [tf.nn.gelu(x)]) == 0


@FORMULAS
def test_eager_execution_computes_what_it_did(approximate: bool) -> None:
    results = []
    for fuse in ("off", RULE):
        with enabled(fuse=fuse):
            results.append(gradient(tf.constant(FEATURES), approximate))
    for plain, same in zip(*results, strict=True):
        np.testing.assert_array_equal(same, plain)
