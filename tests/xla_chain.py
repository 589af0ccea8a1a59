"""A chain of products, and by how much its gradients are off.

In bfloat16 that is a known amount, and far less in float32: what lies in between was
computed in 16 bits with sums in float32.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import tf_amp

SIZE, DEPTH = 64, 4


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = values(32, SIZE)
WEIGHTS = [values(SIZE, SIZE, seed=1 + i) * SIZE**-0.5 for i in range(DEPTH)]


class Chain:
    """Layers of products, with the gradients of their mean square."""

    def __init__(self) -> None:
        self.weights = [tf.Variable(weight) for weight in WEIGHTS]

    def loss(self, x: tf.Tensor) -> tf.Tensor:
        for weight in self.weights:
            x = tf.tanh(x @ weight)
        return tf.reduce_mean(x**2)

    def gradients(self, loss_function, x: tf.Tensor = X) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_function(x)
        return tape.gradient(loss, self.weights)


def exact(make=Chain) -> list[np.ndarray]:
    with tf_amp.float32_scope():
        chain = make()
        return [g.numpy() for g in chain.gradients(tf.function(chain.loss))]


def error(found: list[tf.Tensor], wanted: list[np.ndarray]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float(np.linalg.norm(f - w) / np.linalg.norm(w)) for f, w in pairs)
