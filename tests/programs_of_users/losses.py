"""Losses: logarithms, exponents, differences of what is nearly equal."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.programs_of_users.building import (
    UserProgram,
    cross_entropy,
    ids,
    network,
    normal,
    trained,
    uniform,
    weight,
)

_ROWS, _WIDTH, _CLASSES = 16, 32, 10


def _classifier(loss: Any, activation: Any = None) -> UserProgram:
    net = network(_CLASSES, activation)
    return trained(
        lambda x, y: tf.reduce_mean(loss(y, net(x))),
        normal(_ROWS, _WIDTH),
        ids(_ROWS, below=_CLASSES),
    )


def label_smoothing() -> UserProgram:
    """Return cross entropy against smoothed labels."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    return _classifier(lambda y, logits: loss(tf.one_hot(y, _CLASSES), logits))


def logarithm_of_a_softmax() -> UserProgram:
    """Return cross entropy of probabilities, whose logarithm is taken afterwards."""
    return _classifier(keras.losses.sparse_categorical_crossentropy, "softmax")


def class_weights() -> UserProgram:
    """Return cross entropy with a weight of each class, from 0.01 to 100."""
    weights = tf.constant([0.01, 0.1, 1.0, 10.0, 100.0] * 2)

    def loss(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return each * tf.gather(weights, y)

    return _classifier(loss)


def focal_loss() -> UserProgram:
    """Return the focal loss of detectors, with a clip at 1e-7."""

    def loss(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        target = tf.one_hot(y, _CLASSES)
        p = tf.clip_by_value(tf.sigmoid(logits), 1e-7, 1 - 1e-7)
        of_target = target * p + (1 - target) * (1 - p)
        return -tf.reduce_sum((1 - of_target) ** 2 * tf.math.log(of_target), -1)

    return _classifier(loss)


def binary_cross_entropy_of_probabilities() -> UserProgram:
    """Return the mean of logarithms of p and 1 - p, with an epsilon of 1e-7."""
    net = network(1, "sigmoid")

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        p = net(x)[:, 0]
        return -tf.reduce_mean(
            y * tf.math.log(p + 1e-7) + (1 - y) * tf.math.log(1 - p + 1e-7)
        )

    return trained(
        loss,
        normal(_ROWS, _WIDTH),
        lambda rng: rng.integers(0, 2, _ROWS).astype("float32"),
    )


def dice_loss() -> UserProgram:
    """Return one minus twice the overlap of masks over all their pixels."""
    net = keras.Sequential(
        [
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(1, 1, activation="sigmoid"),
        ]
    )

    def loss(x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        p = net(x)[..., 0]
        axes = (1, 2)
        overlap = tf.reduce_sum(p * mask, axes)
        total = tf.reduce_sum(p, axes) + tf.reduce_sum(mask, axes)
        return 1 - tf.reduce_mean((2 * overlap + 1e-6) / (total + 1e-6))

    return trained(
        loss,
        normal(2, 16, 16, 16),
        lambda rng: rng.integers(0, 2, (2, 16, 16)).astype("float32"),
    )


def huber_of_prices() -> UserProgram:
    """Return the Huber loss of targets around 1,000, of which a part is learned."""
    net = network(1)
    loss = keras.losses.Huber(delta=10.0)
    return trained(
        lambda x, y: loss(y, 1000.0 + 20.0 * net(x)[:, 0]),
        normal(_ROWS, _WIDTH),
        normal(_ROWS, scale=20.0, offset=1000.0),
    )


def triplet_loss() -> UserProgram:
    """Return a triplet loss from squared distances of the form a2 + b2 - 2ab."""
    net = network(_WIDTH)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        e = tf.math.l2_normalize(net(x), -1)
        dots = tf.matmul(e, e, transpose_b=True)
        squares = tf.linalg.diag_part(dots)
        distances = tf.maximum(squares[:, None] - 2 * dots + squares[None], 0.0)
        same = tf.cast(y[:, None] == y[None], tf.float32)
        hardest = tf.reduce_max(distances * same, 1)
        nearest = tf.reduce_min(distances + 10.0 * same, 1)
        return tf.reduce_mean(tf.nn.softplus(hardest - nearest))

    return trained(loss, normal(_ROWS, _WIDTH), ids(_ROWS, below=4))


def contrastive_loss() -> UserProgram:
    """Return cross entropy of cosines over a temperature of 0.07, as CLIP has it."""
    images, texts = network(_WIDTH), network(_WIDTH)
    temperature = tf.Variable(tf.math.log(1 / 0.07))

    def loss(x: tf.Tensor, t: tf.Tensor) -> tf.Tensor:
        a = tf.math.l2_normalize(images(x), -1)
        b = tf.math.l2_normalize(texts(t), -1)
        logits = tf.exp(temperature) * tf.matmul(a, b, transpose_b=True)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        both = (
            entropy(tf.range(_ROWS), logits),
            entropy(tf.range(_ROWS), tf.transpose(logits)),
        )
        return tf.reduce_mean(tf.concat(both, 0))

    return trained(loss, normal(_ROWS, _WIDTH), normal(_ROWS, _WIDTH))


def ctc_loss() -> UserProgram:
    """Return the loss of unaligned labels."""
    net = network(_CLASSES)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = tf.transpose(net(x), [1, 0, 2])
        lengths = tf.fill([4], 4)
        times = tf.fill([4], 12)
        return tf.reduce_mean(tf.nn.ctc_loss(y, logits, lengths, times, blank_index=0))

    return trained(loss, normal(4, 12, _WIDTH), ids(4, 4, below=_CLASSES, least=1))


def distillation() -> UserProgram:
    """Return the divergence from a teacher at a temperature of 4."""
    student, teacher = network(_CLASSES), weight(_WIDTH, _CLASSES)

    def loss(x: tf.Tensor) -> tf.Tensor:
        p = tf.nn.softmax(tf.stop_gradient(x @ teacher) / 4)
        log_q = tf.nn.log_softmax(student(x) / 4)
        each = tf.reduce_sum(p * (tf.math.log(p + 1e-8) - log_q), -1)
        return 16 * tf.reduce_mean(each)

    return trained(loss, normal(_ROWS, _WIDTH))


def angular_margin() -> UserProgram:
    """Return ArcFace: cross entropy of cosines, the right one by 0.5 further off."""
    net, centers = network(_WIDTH), weight(_WIDTH, _CLASSES)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        e = tf.math.l2_normalize(net(x), -1)
        cosines = e @ tf.math.l2_normalize(centers, 0)
        angles = tf.acos(tf.clip_by_value(cosines, -1 + 1e-6, 1 - 1e-6))
        margin = 0.5 * tf.one_hot(y, _CLASSES)
        logits = 30.0 * tf.cos(angles + margin)
        return cross_entropy(y, logits)

    return trained(loss, normal(_ROWS, _WIDTH), ids(_ROWS, below=_CLASSES))


def quantiles() -> UserProgram:
    """Return the pinball loss of five quantiles."""
    net = network(5)
    levels = tf.constant([0.05, 0.25, 0.5, 0.75, 0.95])

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        error = y[:, None] - net(x)
        return tf.reduce_mean(tf.maximum(levels * error, (levels - 1) * error))

    return trained(loss, normal(_ROWS, _WIDTH), uniform(_ROWS, high=50.0))
