"""Branches, nested functions, gradients of one's own, recurrent Keras layers."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.equivalence import assert_equivalent
from tests.programs import program_from_function
from tests.sketch import sketch
from tests.soundness import LOW_DTYPES, ops_with_dtype

both_dtypes = pytest.mark.parametrize("low_dtype", sorted(LOW_DTYPES))
both_control_flows = pytest.mark.parametrize("v2", [False, True], ids=["v1", "v2"])


@pytest.mark.parametrize("taken", [0, 1])
@both_control_flows
@both_dtypes
def test_either_branch_of_a_cond(low_dtype: str, v2: bool, taken: int) -> None:
    with sketch(v2_control_flow=v2) as s:
        x, w = s.feed(4, 8), s.weight(8, 8)
        predicate = s.feed_value(np.array(taken == 1), "predicate")
        y = tf.cond(predicate, lambda: tf.matmul(x, w), lambda: tf.exp(-x * x))
        loss = tf.reduce_mean(tf.square(tf.matmul(y, s.weight(8, 4, name="v"))))
        gradients = tf.gradients(loss, tf.compat.v1.global_variables())
        program = s.program(loss, *map(tf.identity, gradients))
    after = assert_equivalent(program, low_dtype, capture=True).graph_def
    assert ops_with_dtype(after, low_dtype)["MatMul"] >= 3


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def weights(*shape: int) -> tf.Variable:
    return tf.Variable(values(*shape) * shape[0] ** -0.5)


@pytest.mark.parametrize("noinline", [False, True])
@both_dtypes
def test_nested_functions(low_dtype: str, noinline: bool) -> None:
    w = weights(8, 8)
    attributes = {"_noinline": True} if noinline else {}

    @tf.function(autograph=False, experimental_attributes=attributes)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(x, w))

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inner(inner(tf.matmul(x, w))), w) + 1.0

    program = program_from_function(outer, values(4, 8))
    after = assert_equivalent(program, low_dtype, capture=True).graph_def
    assert ops_with_dtype(after, low_dtype)["MatMul"] == (2 if noinline else 4)


def clipped(x: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def compute(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.tanh(x), lambda upstream: tf.clip_by_norm(upstream, 0.5)

    return compute(x)


@pytest.mark.parametrize("kind", ["custom_gradient", "recompute_grad"])
@both_dtypes
def test_gradients_of_ones_own(low_dtype: str, kind: str) -> None:
    w, v = weights(8, 8), weights(8, 4)

    def layer(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(x, w))

    def hidden(x: tf.Tensor) -> tf.Tensor:
        if kind == "recompute_grad":
            return tf.recompute_grad(layer)(x)
        return clipped(tf.matmul(x, w))

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden(x), v)))
        return [loss, *tape.gradient(loss, [w, v])]

    program = program_from_function(step, values(4, 8))
    after = assert_equivalent(program, low_dtype, capture=True).graph_def
    assert ops_with_dtype(after, low_dtype)["MatMul"] >= 3


LAYERS = {
    "lstm": lambda: keras.layers.LSTM(6, return_sequences=True),
    "lstm_unrolled": lambda: keras.layers.LSTM(6, unroll=True),
    "gru": lambda: keras.layers.GRU(6),
    "bidirectional": lambda: keras.layers.Bidirectional(keras.layers.LSTM(6)),
    "masked_attention": lambda: keras.layers.MultiHeadAttention(2, 4),
}


@pytest.mark.parametrize(
    ("kind", "training"),
    [*((kind, True) for kind in sorted(LAYERS)), ("lstm", False)],
)
def test_keras_layers(kind: str, training: bool) -> None:
    keras.utils.set_random_seed(1)
    layer = LAYERS[kind]()
    x = values(3, 5, 8)
    arguments = {"use_causal_mask": True} if kind == "masked_attention" else {}

    def call(x: tf.Tensor) -> tf.Tensor:
        given = (x, x) if kind == "masked_attention" else (x,)
        return layer(*given, **arguments)

    call(tf.constant(x))

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            y = call(x)
            loss = tf.reduce_mean(tf.square(y))
        if not training:
            return [loss]
        # Softmax ignores a shift: the gradient of the keys' bias is rounding alone.
        trained = layer.trainable_variables
        variables = [v.value for v in trained if not v.path.endswith("key/bias")]
        return [loss, *tape.gradient(loss, variables)]

    program = program_from_function(step, x)
    for low_dtype in sorted(LOW_DTYPES):
        after = assert_equivalent(program, low_dtype, capture=True).graph_def
        found = ops_with_dtype(after, low_dtype)
        assert sum(found[op] for op in found if "MatMul" in op or op == "Einsum") >= 2
