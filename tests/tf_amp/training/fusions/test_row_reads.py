"""A table that is trained is read row by row, and learns the same."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tf_amp.training.fusions.test_fused_steps import assert_close, enabled

WORDS, WIDTH = 50, 8
COPIES, ROWS = "GatherV2", "ResourceGather"


def ids(*shape: int) -> np.ndarray:
    """Return numbers of rows, some of them counted from the end."""
    return np.random.default_rng(1).integers(-WORDS, WORDS, shape).astype(np.int32)


def training(layer: keras.layers.Layer, **given: object) -> Callable:
    """Return a function that trains a layer on its own outputs, and returns them."""
    optimizer = keras.optimizers.SGD(0.1)
    layer.build()
    optimizer.build(layer.trainable_variables)

    @tf.function(autograph=False, **given)
    def step(inputs: tf.Tensor) -> tf.Tensor:
        weights = layer.trainable_variables
        with tf.GradientTape() as tape:
            rows = layer(inputs)
            loss = tf.reduce_sum(tf.cast(rows, tf.float32) ** 2)
        if weights:
            gradients = tape.gradient(loss, [each.value for each in weights])
            optimizer.apply(gradients, weights)
        return rows

    return step


def reading_ops(function: tf.types.experimental.PolymorphicFunction, *given) -> set:
    """Return by which operations a function looks rows up."""
    graph = function.get_concrete_function(*given).graph
    return {op.type for op in graph.get_operations()} & {COPIES, ROWS}


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4,), "int32"), ((4, 5), "int64"), ((4, 5), "float32")]
)
def test_rows_and_what_is_learned_are_those_of_keras(shape, dtype) -> None:
    given = tf.constant(ids(*shape), dtype)
    results = []
    for fuse, wanted in (("off", COPIES), ("on", ROWS)):
        with enabled(fuse=fuse):
            keras.utils.set_random_seed(0)
            layer = keras.layers.Embedding(WORDS, WIDTH)
            step = training(layer)
            assert reading_ops(step, given) == {wanted}
            results.append([step(given), step(given), layer.get_weights()[0]])
    assert_close(*results, 0.0)


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ({"dtype": "mixed_bfloat16"}, None),
        ({"dtype": "float64"}, None),
        ({"trainable": False}, None),
        ({"lora_rank": 2}, None),
        ({}, lambda layer: layer.quantize("int8")),
    ],
    ids=["policy", "float64", "frozen", "lora", "quantized"],
)
def test_other_tables_are_read_as_keras_does(given, change) -> None:
    with enabled():
        layer = keras.layers.Embedding(WORDS, WIDTH, **given)
        layer.build()
        if change:
            change(layer)
        assert reading_ops(training(layer), tf.constant(ids(3))) == {COPIES}


def test_so_are_tables_that_are_not_trained_here_or_compiled() -> None:
    with enabled():
        layer = keras.layers.Embedding(WORDS, WIDTH)
        given = tf.constant(ids(3))
        assert reading_ops(tf.function(lambda x: layer(x)), given) == {COPIES}
        assert reading_ops(training(layer, jit_compile=True), given) == {COPIES}
