"""Branches, nested functions, gradients of one's own, recurrent Keras layers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tests.grappler_pass.rewriting.patterns import (
    CONTROL_FLOWS,
    gradients_of,
    rewritten,
)
from tests.programs import Program, program_from_function
from tests.sketch import Sketch

of_functions = functools.partial(rewritten, traced=True, capture=True)


@rewritten(
    least={"MatMul": 3},
    control_flows=CONTROL_FLOWS,
    given={"left": (False,), "taken": (True,)},
    capture=True,
)
def test_either_branch_of_a_cond(s: Sketch, taken: bool):
    x, w = s.feed(4, 8), s.weight(8, 8)
    predicate = s.feed_value(np.array(taken), "predicate")
    y = tf.cond(predicate, lambda: tf.matmul(x, w), lambda: tf.exp(-x * x))
    loss = tf.reduce_mean(tf.square(tf.matmul(y, s.weight(8, 4, name="v"))))
    return loss, *gradients_of(loss)


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def weights(*shape: int) -> tf.Variable:
    return tf.Variable(values(*shape) * shape[0] ** -0.5)


def program_of(function: Callable[..., object], *args: np.ndarray) -> Program:
    return program_from_function(tf.function(function, autograph=False), *args)


@of_functions(given={"inlined": ({}, 4), "called": ({"_noinline": True}, 2)})
def test_nested_functions(attributes: dict[str, bool], products: int):
    w = weights(8, 8)

    @tf.function(autograph=False, experimental_attributes=attributes)
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(x, w))

    def outer(x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(inner(inner(tf.matmul(x, w))), w) + 1.0

    after, _ = yield program_of(outer, values(4, 8))
    assert [node.op for node in after.node].count("MatMul") == products


def clipped(x: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def compute(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.tanh(x), lambda upstream: tf.clip_by_norm(upstream, 0.5)

    return compute(x)


@of_functions(
    least={"MatMul": 3},
    given={
        "custom_gradient": (lambda layer: lambda x: clipped(layer(x)),),
        "recompute_grad": (tf.recompute_grad,),
    },
)
def test_gradients_of_ones_own(wrapped: Callable[..., Callable[..., tf.Tensor]]):
    w, v = weights(8, 8), weights(8, 4)
    hidden = wrapped(lambda x: tf.tanh(tf.matmul(x, w)))

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(hidden(x), v)))
        return [loss, *tape.gradient(loss, [w, v])]

    return program_of(step, values(4, 8))


LAYERS = {
    "lstm": lambda: keras.layers.LSTM(6, return_sequences=True),
    "lstm_unrolled": lambda: keras.layers.LSTM(6, unroll=True),
    "gru": lambda: keras.layers.GRU(6),
    "bidirectional": lambda: keras.layers.Bidirectional(keras.layers.LSTM(6)),
    "masked_attention": lambda: keras.layers.MultiHeadAttention(2, 4),
}


@of_functions(
    given={
        **{kind: (kind, True) for kind in sorted(LAYERS)},
        "lstm in inference": ("lstm", False),
    }
)
def test_keras_layers(kind: str, training: bool):
    keras.utils.set_random_seed(1)
    layer, x = LAYERS[kind](), values(3, 5, 8)

    def call(x: tf.Tensor) -> tf.Tensor:
        if kind == "masked_attention":
            return layer(x, x, use_causal_mask=True)
        return layer(x)

    call(tf.constant(x))

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

    return program_of(step, x)
