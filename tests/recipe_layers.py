"""The layers of recipes: [batch, width] in and out, values of about magnitude one.

Each takes `count`, how often it repeats something, and `amount`, how much of it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tests.recipe_builder import Builder

RecipeLayer = Callable[[Builder, tf.Tensor, int, float], tf.Tensor]
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "linear": tf.identity,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "gelu": tf.nn.gelu,
    "silu": tf.nn.silu,
    "softplus": tf.nn.softplus,
}


def dense(
    activation: Callable[[tf.Tensor], tf.Tensor],
) -> RecipeLayer:
    """Return a layer with a bias around `amount`."""

    def layer(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
        product = tf.matmul(x, b.weight(b.width, b.width))
        bias = b.weight(b.width, scale=0.1, offset=amount)
        return activation(tf.nn.bias_add(product, bias))

    return layer


def residual(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Add `count` small steps, each with a weight of its own."""
    for _ in range(count):
        x = x + amount * tf.tanh(tf.matmul(x, b.weight(b.width, b.width)))
    return x


def layer_normalization(
    b: Builder, x: tf.Tensor, count: int, amount: float
) -> tf.Tensor:
    """Normalize rows, with gain and offset."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    gain, offset = (
        b.weight(b.width, scale=0.1, offset=1.0),
        b.weight(b.width, scale=0.1),
    )
    return (x - mean) * tf.math.rsqrt(variance + 1e-3) * gain + offset


def batch_normalization(
    b: Builder, x: tf.Tensor, count: int, amount: float
) -> tf.Tensor:
    """Normalize columns and move the averages, which are fetched."""
    mean, variance = tf.nn.moments(x, axes=[0])
    for moment, role in ((mean, "mean"), (variance, "variance")):
        average = b.state(b.width)
        moved = 0.9 * average + 0.1 * moment
        b.fetch(moved, role)
        with tf.control_dependencies([moved]):
            b.targets.append(average.assign(moved).op)
    gain = b.weight(b.width, scale=0.1, offset=1.0)
    return tf.nn.batch_normalization(x, mean, variance, None, gain, 1e-3)


def attention(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Let rows attend to earlier rows."""
    q, k, v = (tf.matmul(x, b.weight(b.width, b.width)) for _ in range(3))
    scores = tf.matmul(q, k, transpose_b=True) * b.width**-0.5
    later = tf.constant(1.0 - np.tri(b.batch), tf.float32)
    return tf.matmul(tf.nn.softmax(scores + later * -1e9), v)


def softmax(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Take the softmax of rows."""
    return 4.0 * tf.nn.softmax(x)


def convolution(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Convolve each row as an image of 4 by 4 pixels."""
    channels = b.width // 16
    image = tf.reshape(x, [b.batch, 4, 4, channels])
    y = tf.nn.conv2d(image, b.weight(3, 3, channels, channels), 1, "SAME")
    y = tf.nn.relu(tf.nn.bias_add(y, b.weight(channels, scale=0.1)))
    return tf.reshape(y, [b.batch, b.width])


def outer(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Add the outer product of a column and a vector."""
    return x + 0.1 * tf.einsum("i,j->ij", x[:, 0], b.weight(b.width, scale=1.0))


def narrow(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Multiply a column by a row: a product whose inner size is 1."""
    return x + 0.1 * tf.matmul(x[:, :1], b.weight(1, b.width))


def statistics(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch what a product's values are on average, and how they scatter."""
    y = tf.matmul(x, b.weight(b.width, b.width))
    b.fetch(tf.reduce_mean(y), "mean")
    b.fetch(tf.math.reduce_std(y, axis=0), "deviation")
    return y


def argmax(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch where rows are largest."""
    b.fetch(tf.argmax(x, axis=-1), "argmax")
    return x


def comparison(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch which values are positive."""
    b.fetch(x > 0.0, "comparison")
    return x


def integers(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch values quantized to integers."""
    b.fetch(tf.cast(tf.floor(x * 16.0), tf.int32), "floor")
    b.fetch(tf.cast(x * 16.0, tf.int32), "integers")
    return x


def scaled(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Multiply all by one number."""
    return amount * x


LAYERS: dict[str, RecipeLayer] = {
    **{name: dense(activation) for name, activation in ACTIVATIONS.items()},
    **{
        layer.__name__: layer
        for layer in (
            residual,
            layer_normalization,
            batch_normalization,
            attention,
            softmax,
            convolution,
            outer,
            narrow,
            statistics,
            argmax,
            comparison,
            integers,
            scaled,
        )
    },
}
