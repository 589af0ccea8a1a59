"""Eligibility in graphs of layers, as TensorFlow made them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from grappler_pass.planning.plan import Cause
from tests.coloring_programs import (
    X,
    all_products_low,
    colored_function,
    op_of,
    weights,
)


def layer_program(
    layer: tf.keras.layers.Layer, x: np.ndarray, *, train: bool = False
) -> Callable[..., object]:
    layer.build(x.shape)

    def forward(inputs: tf.Tensor) -> tf.Tensor:
        return tf.identity(layer(inputs, training=train))

    def backward(inputs: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            result = layer(inputs, training=True)
        return [
            tf.identity(g) for g in tape.gradient(result, layer.trainable_variables)
        ]

    return backward if train else forward


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: tf.keras.layers.LSTM(4),
        lambda: tf.keras.layers.GRU(4),
        lambda: tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(4)),
    ],
    ids=["lstm", "gru", "bidirectional"],
)
def test_recurrent_layers_convert_every_product(
    layer: Callable[[], tf.keras.layers.Layer], train: bool
) -> None:
    x = np.ones((2, 3, 8), np.float32)
    assert all_products_low(colored_function(layer_program(layer(), x, train=train), x))


def test_moments_of_a_layer_normalization_stay_float32() -> None:
    w, norm = weights(8, 8), tf.keras.layers.LayerNormalization()
    norm.build((None, 8))

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(norm(x @ w)) @ w

    colored = colored_function(run, X)
    assert all_products_low(colored)
    assert colored.low_ops("Mean")[0] == 0
    assert colored.low_ops("Rsqrt")[0] == 0


@pytest.mark.parametrize("low_dtype", ["bfloat16", "float16"])
def test_attention_with_a_mask_keeps_the_mask_finite(low_dtype: str) -> None:
    w = weights(8, 8)
    mask = np.array([[0, 1, 1, 0]], np.float32)

    def run(x: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        query = x @ w
        scores = tf.matmul(query, x @ w, transpose_b=True) + hidden * -1e9
        return tf.nn.relu(tf.nn.softmax(scores) @ query)

    colored = colored_function(run, X, mask, low_dtype=low_dtype)
    assert all_products_low(colored)
    expected = (1, 1) if low_dtype == "bfloat16" else (0, 1)
    assert colored.low_ops("Softmax") == expected


def test_dropout_draws_and_compares_in_float32() -> None:
    w = weights(8, 8)

    def run(x: tf.Tensor) -> tf.Tensor:
        return tf.nn.dropout(x @ w, 0.5, seed=1) @ w

    colored = colored_function(run, X)
    assert all_products_low(colored)
    assert colored.low_ops("GreaterEqual") == (0, 1)
    assert colored.low_ops("RandomUniform") == (0, 1)


def test_a_gather_may_go_low_where_its_table_is_no_resource() -> None:
    w = weights(8, 8)

    def run(ids: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        from_table = tf.gather(w, ids)
        from_activation = tf.gather(x @ w, ids)
        return tf.nn.relu(from_table @ w + from_activation)

    colored = colored_function(run, np.array([0, 2, 1, 0], np.int32), X)
    assert colored.low_ops("GatherV2") == (1, 1)
    assert colored.low_ops("ResourceGather") == (0, 1)
    assert all_products_low(colored)


def test_a_sparse_update_of_a_table_stays_float32() -> None:
    table, w = weights(16, 8), weights(8, 8)
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build([table, w])

    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(tf.gather(table, ids) @ w))
        gradients = tape.gradient(loss, [table, w])
        optimizer.apply_gradients(zip(gradients, [table, w], strict=True))

    colored = colored_function(step, np.array([0, 2, 1, 0], np.int32))
    assert all_products_low(colored)
    for op in ("Sqrt", "Square", "UnsortedSegmentSum", "ResourceScatterAdd"):
        assert colored.low_ops(op)[0] == 0


def test_ids_that_arrive_as_float32_reach_the_table_exactly() -> None:
    table = weights(4096, 8)

    def run(features: tf.Tensor) -> tf.Tensor:
        features = tf.reshape(features, [-1, 8])
        ids = tf.cast(features[:, 0], tf.int32)
        return tf.nn.relu(tf.gather(table, ids) @ weights_8) + features @ weights_8

    weights_8 = weights(8, 8)
    colored = colored_function(run, X.reshape(2, 2, 8))
    causes = {
        colored.constraints.reasons[slot].cause
        for slot in range(len(colored.slots.slots))
        if op_of(colored, slot) in ("StridedSlice", "Reshape")
    }
    assert causes == {Cause.EXACT}
    assert all_products_low(colored)


def test_custom_gradients_and_nested_functions_convert() -> None:
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

    assert all_products_low(colored_function(run, X))
