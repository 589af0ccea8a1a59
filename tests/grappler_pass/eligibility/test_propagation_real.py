"""Eligibility on graphs that TensorFlow made: training steps, loops, lists."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.coloring import Colored
from tests.coloring_programs import (
    X,
    all_products_low,
    colored_as_by_grappler,
    colored_function,
    op_of,
    products,
    weights,
)
from tests.programs import Program, program_from_function
from tests.sketch import Sketch, sketch

# Training steps.


def dense_layers() -> list[tf.Variable]:
    return [weights(8, 8) for _ in range(3)]


def loss_of(layers: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    for layer in layers:
        x = tf.nn.relu(x @ layer)
    return tf.reduce_mean(x * x)


@pytest.mark.parametrize("returns", [True, False])
def test_a_training_step_converts_all_its_products(returns: bool) -> None:
    layers = dense_layers()
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(layers)

    def step(x: tf.Tensor) -> tf.Tensor | None:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, x)
        optimizer.apply_gradients(zip(tape.gradient(loss, layers), layers, strict=True))
        return loss if returns else None

    colored = colored_function(step, X)
    assert products(colored) == (8, 8)
    assert eligible_nodes(colored, "adam/") == []


def eligible_nodes(colored: Colored, scope: str) -> list[str]:
    """Return the names in a scope of the nodes that compute and may be in 16 bits."""
    return [
        str(colored.slots.slots[slot])
        for slot, eligible in enumerate(colored.constraints.eligible)
        if eligible and scope in colored.slots.slots[slot].node
    ]


def test_clipping_by_the_global_norm_is_optimizer_arithmetic() -> None:
    layers = dense_layers()

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, x)
        gradients = tape.gradient(loss, layers)
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
        for layer, gradient in zip(layers, clipped, strict=True):
            layer.assign_sub(0.1 * gradient)

    colored = colored_function(step, X)
    assert products(colored) == (8, 8)
    assert colored.low_ops("L2Loss") == (0, 3)
    assert eligible_nodes(colored, "clip_by_global_norm") == []


def test_a_training_loop_in_the_graph_converts_its_products() -> None:
    layers = dense_layers()

    def train(x: tf.Tensor) -> None:
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = loss_of(layers, x)
            for layer, g in zip(layers, tape.gradient(loss, layers), strict=True):
                layer.assign_sub(0.1 * g)

    assert products(colored_function(train, X)) == (8, 8)


def test_a_keras_fit_step_converts_its_products_and_its_loss_stays() -> None:
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(4)]
    )
    model.build((None, 8))
    model.compile(
        "adam",
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        return model.train_step((x, y))

    colored = colored_function(step, X, np.arange(4, dtype=np.int32))
    assert all_products_low(colored)
    low, of = colored.low_ops("SparseSoftmaxCrossEntropyWithLogits")
    assert (low, of) == (0, 1)
    assert colored.low_ops("AssignAddVariableOp")[0] == 0


# Loops and branches.


def scan(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    (_, state) = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, s: (i + 1, tf.nn.relu(s @ w)),
        (tf.constant(0), x),
    )
    return tf.identity(state)


@pytest.mark.parametrize("with_gradient", [False, True])
def test_products_in_a_v2_loop_may_go_low(with_gradient: bool) -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        if not with_gradient:
            return scan(x, w)
        with tf.GradientTape() as tape:
            result = scan(x, w)
        return tf.identity(tape.gradient(result, w))

    colored = colored_function(run, X)
    assert all_products_low(colored)
    # What is carried is fetched in the end, and float32 then.
    assert (colored.low_ops("Merge")[0] > 0) is with_gradient
    for op in ("TensorListPushBack", "TensorListPopBack"):
        low, of = colored.low_ops(op)
        assert low == of


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_products_in_a_session_loop_with_gradient_may_go_low(v2: bool) -> None:
    def build(s: Sketch) -> Program:
        x, w = s.feed(4, 8), s.weight(8, 8)
        result = scan(x, w)
        (gradient,) = tf.gradients(result, w)
        return s.program(result, gradient)

    with sketch(v2_control_flow=v2) as s:
        program = build(s)
    colored = colored_as_by_grappler(program)
    assert all_products_low(colored)
    for op in ("StackV2", "StackPushV2", "StackPopV2", "TensorListPushBack"):
        low, of = colored.low_ops(op)
        assert low == of


def test_products_in_both_branches_may_go_low() -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            tf.reduce_sum(x) > 0, lambda: tf.nn.relu(x @ w), lambda: x @ w @ w
        )

    colored = colored_function(run, X)
    assert products(colored) == (3, 3)
    assert colored.low_ops("Sum") == (0, 1)


# Lists.


@pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])
def test_a_tensor_array_in_a_loop_has_one_color(v2: bool) -> None:
    with sketch(v2_control_flow=v2) as s:
        x, w = s.feed(4, 8), s.weight(8, 8)
        array = tf.TensorArray(tf.float32, size=3)
        _, array = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, a: (i + 1, a.write(i, x @ w)),
            (tf.constant(0), array),
        )
        program = s.program(tf.nn.relu(array.stack()) + 1.0)
    colored = colored_as_by_grappler(program)
    assert all_products_low(colored)
    ops = ("TensorListReserve", "TensorListSetItem", "TensorListStack")
    if not v2:
        ops = ("TensorArrayV3", "TensorArrayWriteV3", "TensorArrayGatherV3")
    assert [colored.low_ops(op) for op in ops] == [(1, 1)] * 3
    groups = colored.constraints.ties
    slots = [s for s, ok in enumerate(colored.constraints.eligible) if ok]
    listed = {s for s in slots if op_of(colored, s) in ops}
    assert any(listed <= set(group) for group in groups)


def test_a_list_that_a_function_returns_stays_float32() -> None:
    w = weights(8, 8)

    @tf.function(autograph=False)
    def callee(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.TensorListFromTensor(tensor=x @ w, element_shape=[8])

    program = program_from_function(callee, X)
    colored = colored_as_by_grappler(program)
    assert colored.low_ops("TensorListFromTensor") == (0, 1)
    assert all_products_low(colored)


def test_a_maximum_in_a_loop_and_its_gradient_agree() -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            state = x
            for _ in tf.range(2):
                product = state @ w
                state = product - tf.reduce_max(product, axis=1, keepdims=True)
            result = tf.reduce_sum(state)
        return tf.identity(tape.gradient(result, w))

    colored = colored_function(run, X)
    assert all_products_low(colored)
    assert colored.low_ops("Max") == colored.low_ops("Equal")
