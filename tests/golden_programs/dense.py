"""Programs of dense layers and tables: classifiers, generators, recommenders."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import keras
import tensorflow as tf

from benchmarks.models import dense_layers, mlp
from benchmarks.training_graphs import others, recommender
from benchmarks.training_graphs.words import (
    Gradients,
    Step,
    Tensor,
    adam,
    dense,
    floats,
    integers,
    training_step,
    v1,
    variable,
    word_loss,
)
from tests.golden_programs.tracing import floats_spec, integers_spec, keras_step

_BATCH = 16384


def wide_mlp() -> Step:
    """Return a step of Keras' dense layers under Adam."""
    x, y = floats_spec(_BATCH, 1024), integers_spec(_BATCH)
    return keras_step(mlp.build(), mlp.loss(), keras.optimizers.Adam(1e-3), x, y)


def tiny_mlp() -> Step:
    """Return a step in which the overhead of each op decides."""
    x, y = floats_spec(32, 32), integers_spec(32)
    model = dense_layers.build(32, (64, 64), 10)
    return keras_step(model, dense_layers.loss(), keras.optimizers.SGD(0.1), x, y)


def wide_deep() -> Step:
    """Return a step of wide & deep under Adagrad, as benchmarked."""
    return recommender.wide_deep(16384)


def ncf() -> Step:
    """Return a step of neural collaborative filtering, as benchmarked."""
    return others.ncf(65536)


def _encoded(x: Tensor, width: int) -> tuple[Tensor, Tensor]:
    hidden = dense(x, 4096, tf.nn.relu)
    return dense(hidden, width), dense(hidden, width)


def vae() -> Step:
    """Return a step of a variational autoencoder."""

    def loss() -> Tensor:
        x = floats(_BATCH, 784)
        mean, log_variance = _encoded(x, 256)
        noise = tf.random.normal(mean.shape, seed=1)
        code = mean + tf.exp(0.5 * log_variance) * noise
        logits = dense(dense(code, 4096, tf.nn.relu), 784)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(x, logits)
        divergence = 1.0 + log_variance - mean**2 - tf.exp(log_variance)
        return tf.reduce_mean(
            tf.reduce_sum(entropy, 1) - 0.5 * tf.reduce_sum(divergence, 1)
        )

    return training_step(loss, adam)


def _stack(widths: tuple[int, ...], name: str) -> Callable[[Tensor], Tensor]:
    """Return dense layers whose weights serve every call, LeakyReLU between them."""
    sizes = itertools.pairwise(widths)
    pairs = [
        (variable(f"{name}/kernel", n, m), variable(f"{name}/bias", m))
        for n, m in sizes
    ]

    def call(x: Tensor) -> Tensor:
        for kernel, bias in pairs[:-1]:
            x = tf.nn.leaky_relu(tf.nn.bias_add(tf.matmul(x, kernel), bias))
        kernel, bias = pairs[-1]
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)

    return call


def _apply(loss: Tensor, scope: str) -> tf.Operation:
    variables = v1.trainable_variables(scope)
    gradients = tf.gradients(loss, variables)
    return adam(list(zip(gradients, variables, strict=True)))


def gan() -> Step:
    """Return both steps of a generative adversarial network in one graph."""
    entropy = tf.nn.sigmoid_cross_entropy_with_logits
    with tf.Graph().as_default() as graph:
        judge = _stack((784, 4096, 4096, 1), "judge")
        made = _stack((256, 4096, 4096, 784), "maker")(floats(_BATCH, 256))
        real, false = judge(floats(_BATCH, 784)), judge(tf.tanh(made))
        judged = tf.reduce_mean(
            entropy(tf.ones_like(real), real) + entropy(tf.zeros_like(false), false)
        )
        fooled = tf.reduce_mean(entropy(tf.ones_like(false), false))
        steps = [_apply(judged, "judge"), _apply(fooled, "maker")]
    return Step(graph.as_graph_def(), tuple(step.name for step in steps))


def gradient_penalty() -> Step:
    """Return a step whose loss holds the gradient of a network (second derivatives)."""

    def loss() -> Tensor:
        critic = _stack((1024, 2048, 2048, 1), "critic")
        x = floats(_BATCH, 1024)
        score = critic(x)
        (slope,) = tf.gradients(score, x)
        length = tf.sqrt(tf.reduce_sum(slope**2, 1) + 1e-12)
        return tf.reduce_mean(score) + 10.0 * tf.reduce_mean((length - 1.0) ** 2)

    return training_step(loss, adam)


def two_towers() -> Step:
    """Return a step of a retrieval model: large tables, softmax within the batch."""

    def tower(rows: int) -> Tensor:
        found = tf.gather(variable("table", rows, 128), integers(_BATCH, 8))
        hidden = dense(tf.reduce_mean(found, 1), 4096, tf.nn.relu)
        return tf.math.l2_normalize(dense(hidden, 1024), -1)

    def loss() -> Tensor:
        users, items = tower(2_000_000), tower(500_000)
        scores = tf.matmul(users, items, transpose_b=True) / 0.05
        return word_loss(scores, tf.range(_BATCH))

    def update(gradients: Gradients) -> tf.Operation:
        return v1.train.AdagradOptimizer(0.1).apply_gradients(gradients)

    return training_step(loss, update)


def quantizer() -> Step:
    """Return a step of vector quantization: argmin over a codebook, passed through."""

    def loss() -> Tensor:
        x = floats(_BATCH, 1024)
        code = dense(dense(x, 4096, tf.nn.relu), 512)
        book = variable("book", 8192, 512)
        products = tf.matmul(code, book, transpose_b=True)
        distances = tf.reduce_sum(book**2, 1) - 2.0 * products
        chosen = tf.gather(book, tf.argmin(distances, 1))
        passed = code + tf.stop_gradient(chosen - code)
        restored = dense(dense(passed, 4096, tf.nn.relu), 1024)
        near = tf.reduce_mean((chosen - tf.stop_gradient(code)) ** 2)
        return tf.reduce_mean((restored - x) ** 2) + near

    return training_step(loss, adam)


def mixture_of_experts() -> Step:
    """Return a step in which the two best of eight experts are gathered per token."""

    def loss() -> Tensor:
        x = floats(_BATCH, 512)
        chances, chosen = tf.math.top_k(tf.nn.softmax(dense(x, 8)), 2)
        gates = tf.reduce_sum(tf.one_hot(chosen, 8) * chances[..., None], 1)
        first, second = variable("up", 8, 512, 1024), variable("down", 8, 1024, 512)
        hidden = tf.nn.relu(tf.einsum("bi,eio->ebo", x, first))
        out = tf.einsum("ebi,eio->ebo", hidden, second)
        mixed = tf.einsum("ebo,be->bo", out, gates)
        return word_loss(dense(mixed, 1000), integers(_BATCH))

    return training_step(loss, adam)
