"""Eligibility in graphs that TensorFlow made: layers, training steps, loops, lists."""

from __future__ import annotations

from collections.abc import Callable

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
from tests.sketch import sketch

# What makes each graph, and of how many nodes of some ops how many may be in 16 bits:
# both numbers, or "none" or "all" of those that there are.
PROGRAMS: list[object] = []
IDS = np.array([0, 2, 1, 0], np.int32)


def program(
    *cases: object, **expected: tuple[int, int] | str
) -> Callable[[Callable[..., Colored]], Callable[..., Colored]]:
    """Have graphs checked that a function makes, one for each of some cases."""

    def add(make: Callable[..., Colored]) -> Callable[..., Colored]:
        for case in cases or ((),):
            given = case if isinstance(case, tuple) else (case,)
            name = "-".join((make.__name__, *map(str, given)))
            PROGRAMS.append(pytest.param(make, given, expected, id=name))
        return make

    return add


def no_node_in(colored: Colored, scope: str) -> bool:
    """Return whether all in a scope stays float32."""
    slots = colored.slots.slots
    eligible = colored.constraints.eligible
    return not any(ok and scope in slots[s].node for s, ok in enumerate(eligible))


@program(*((kind, train) for kind in ("LSTM", "GRU", "both") for train in (0, 1)))
def recurrent_layer(kind: str, train: int) -> Colored:
    if kind == "both":
        layer = tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(4))
    else:
        layer = getattr(tf.keras.layers, kind)(4)
    x = np.ones((2, 3, 8), np.float32)
    layer.build(x.shape)

    def forward(inputs: tf.Tensor) -> tf.Tensor:
        return tf.identity(layer(inputs, training=False))

    def backward(inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            result = layer(inputs, training=True)
        gradients = tape.gradient(result, layer.trainable_variables)
        return [tf.identity(gradient) for gradient in gradients]

    return colored_function(backward if train else forward, x)


@program(GatherV2=(1, 1), ResourceGather=(0, 1))
def gather_of_a_resource_and_of_an_activation() -> Colored:
    w = weights(8, 8)

    def run(ids: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        from_table, from_activation = tf.gather(w, ids), tf.gather(x @ w, ids)
        return tf.nn.relu(from_table @ w + from_activation)

    return colored_function(run, IDS, X)


@program(
    Sqrt="none", Square="none", UnsortedSegmentSum="none", ResourceScatterAdd="none"
)
def sparse_update_of_a_table() -> Colored:
    table, w = weights(16, 8), weights(8, 8)
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build([table, w])

    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(tf.gather(table, ids) @ w))
        gradients = tape.gradient(loss, [table, w])
        optimizer.apply_gradients(zip(gradients, [table, w], strict=True))

    return colored_function(step, IDS)


@program()
def custom_gradients_and_nested_functions() -> Colored:
    w = weights(8, 8)

    @tf.custom_gradient
    def doubled(x: tf.Tensor) -> tuple[tf.Tensor, Callable[..., tf.Tensor]]:
        return x * 2.0, lambda upstream: upstream * 2.0

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return doubled(x @ w)

    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            result = tf.recompute_grad(lambda y: inner(y) @ w)(inner(x))
        return tf.identity(tape.gradient(result, w))

    return colored_function(run, X)


# Training steps.


def loss_of(layers: list[tf.Variable], x: tf.Tensor) -> tf.Tensor:
    for layer in layers:
        x = tf.nn.relu(x @ layer)
    return tf.reduce_mean(x * x)


@program(False, True)
def training_step(returns: bool) -> Colored:
    layers = [weights(8, 8) for _ in range(3)]
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(layers)

    def step(x: tf.Tensor) -> tf.Tensor | None:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, x)
        optimizer.apply_gradients(zip(tape.gradient(loss, layers), layers, strict=True))
        return loss if returns else None

    colored = colored_function(step, X)
    assert products(colored) == (8, 8)
    assert no_node_in(colored, "adam/")
    return colored


@program(L2Loss=(0, 3))
def clipping_by_the_global_norm() -> Colored:
    layers = [weights(8, 8) for _ in range(3)]

    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, x)
        clipped, _ = tf.clip_by_global_norm(tape.gradient(loss, layers), 1.0)
        for layer, gradient in zip(layers, clipped, strict=True):
            layer.assign_sub(0.1 * gradient)

    colored = colored_function(step, X)
    assert products(colored) == (8, 8)
    assert no_node_in(colored, "clip_by_global_norm")
    return colored


@program()
def training_loop() -> Colored:
    layers = [weights(8, 8) for _ in range(3)]

    def train(x: tf.Tensor) -> None:
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = loss_of(layers, x)
            for layer, g in zip(layers, tape.gradient(loss, layers), strict=True):
                layer.assign_sub(0.1 * g)

    return colored_function(train, X)


@program(SparseSoftmaxCrossEntropyWithLogits=(0, 1), AssignAddVariableOp="none")
def keras_fit_step() -> Colored:
    dense = tf.keras.layers.Dense
    model = tf.keras.Sequential([dense(8, activation="relu"), dense(4)])
    model.build((None, 8))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    model.optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> dict[str, tf.Tensor]:
        return model.train_step((x, y))

    return colored_function(step, X, np.arange(4, dtype=np.int32))


# Loops and branches.


def scan(x: tf.Tensor, w: tf.Variable) -> tf.Tensor:
    (_, state) = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, s: (i + 1, tf.nn.relu(s @ w)),
        (tf.constant(0), x),
    )
    return tf.identity(state)


@program(Merge="none")
def while_loop() -> Colored:
    w = weights(8, 8)
    # What is carried is fetched in the end, and float32 then.
    return colored_function(lambda x: scan(x, w), X)


@program(TensorListPushBack="all", TensorListPopBack="all")
def while_loop_with_gradient() -> Colored:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            result = scan(x, w)
        return tf.identity(tape.gradient(result, w))

    colored = colored_function(run, X)
    assert colored.low_ops("Merge")[0] > 0
    return colored


def session_loop(v2: bool) -> Colored:
    with sketch(v2_control_flow=v2) as s:
        x, w = s.feed(4, 8), s.weight(8, 8)
        result = scan(x, w)
        (gradient,) = tf.gradients(result, w)
        return colored_as_by_grappler(s.program(result, gradient))


program(False, StackV2="all", StackPushV2="all", StackPopV2="all")(session_loop)
program(True, TensorListPushBack="all")(session_loop)


@program(AddV2="none")
def sum_that_a_loop_carries() -> Colored:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        total = x @ w
        for _ in tf.range(5):
            total = total + tf.nn.relu(x @ w)
        return tf.nn.relu(total @ w)

    return colored_function(run, X)


# Lists.


@program(False, True)
def tensor_array_in_a_loop(v2: bool) -> Colored:
    with sketch(v2_control_flow=v2) as s:
        x, w = s.feed(4, 8), s.weight(8, 8)
        array = tf.TensorArray(tf.float32, size=3)
        _, array = tf.while_loop(
            lambda i, _: i < 3,
            lambda i, a: (i + 1, a.write(i, x @ w)),
            (tf.constant(0), array),
        )
        colored = colored_as_by_grappler(s.program(tf.nn.relu(array.stack()) + 1.0))
    ops = ("TensorListReserve", "TensorListSetItem", "TensorListStack")
    if not v2:
        ops = ("TensorArrayV3", "TensorArrayWriteV3", "TensorArrayGatherV3")
    assert [colored.low_ops(op) for op in ops] == [(1, 1)] * 3
    slots = (s for s, ok in enumerate(colored.constraints.eligible) if ok)
    of_the_list = {slot for slot in slots if op_of(colored, slot) in ops}
    assert any(of_the_list <= set(group) for group in colored.constraints.ties)
    return colored


@pytest.mark.parametrize(("make", "given", "expected"), PROGRAMS)
def test_all_products_go_low_and_of_other_ops_what_is_expected(
    make: Callable[..., Colored],
    given: tuple[object, ...],
    expected: dict[str, tuple[int, int] | str],
) -> None:
    colored = make(*given)
    assert all_products_low(colored)
    for op, wanted in expected.items():
        low, of = colored.low_ops(op)
        assert (low, of) == {"none": (0, of), "all": (of, of)}.get(wanted, wanted), op
