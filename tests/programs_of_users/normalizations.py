"""Normalizations by hand and by layer: means, variances and what divides by them."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tests.programs_of_users.building import (
    UserProgram,
    cross_entropy,
    ids,
    normal,
    trained,
    weight,
)

_ROWS, _WIDTH = 16, 32


def _normalized(
    normalize: Callable[[tf.Tensor], tf.Tensor], *extra: tf.Variable
) -> UserProgram:
    """Return the training of two products with something between them."""
    first, second = weight(_WIDTH, _WIDTH), weight(_WIDTH, 10)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = tf.nn.relu(normalize(x @ first)) @ second
        return cross_entropy(y, logits)

    return trained(loss, normal(_ROWS, _WIDTH, offset=3.0), ids(_ROWS, below=10))


def layer_normalization_by_hand() -> UserProgram:
    """Return a normalization whose variance is a mean of squares less a square."""
    gain = tf.Variable(tf.ones(_WIDTH))

    def normalize(x: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(x * x, -1, keepdims=True) - mean * mean
        return (x - mean) * tf.math.rsqrt(variance + 1e-5) * gain

    return _normalized(normalize, gain)


def root_mean_square_normalization() -> UserProgram:
    """Return the normalization of Llama."""
    gain = tf.Variable(tf.ones(_WIDTH))

    def normalize(x: tf.Tensor) -> tf.Tensor:
        return x * tf.math.rsqrt(tf.reduce_mean(x**2, -1, keepdims=True) + 1e-6) * gain

    return _normalized(normalize, gain)


def unit_length() -> UserProgram:
    """Return vectors of length one."""
    return _normalized(lambda x: 5 * tf.math.l2_normalize(x, -1, epsilon=1e-12))


def moments_of_the_batch() -> UserProgram:
    """Return a batch normalization by tf.nn.moments with a moving average."""
    moving = tf.Variable(tf.ones(_WIDTH), trainable=False)

    def normalize(x: tf.Tensor) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, 0)
        moving.assign(0.999 * moving + 0.001 * variance)
        return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-3)

    return _normalized(normalize)


def _images(*layers: keras.Layer) -> UserProgram:
    net = keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, padding="same"),
            *layers,
            keras.layers.ReLU(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = net(x, training=True)
        return cross_entropy(y, logits)

    return trained(loss, normal(4, 8, 8, 16), ids(4, below=10))


def batch_normalization() -> UserProgram:
    """Return Keras' layer behind a convolution with a bias."""
    return _images(keras.layers.BatchNormalization())


def group_normalization() -> UserProgram:
    """Return Keras' layer with four groups."""
    return _images(keras.layers.GroupNormalization(4))


def spectral_normalization() -> UserProgram:
    """Return Keras' wrapper: a power iteration whose vector is kept."""
    return _images(
        keras.layers.SpectralNormalization(keras.layers.Conv2D(16, 3, padding="same"))
    )
