"""Whole numbers on their way through floats: ids, places, counts, lookups."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.programs_of_users.building import (
    UserProgram,
    cross_entropy,
    ids,
    normal,
    trained,
    uniform,
    weight,
)

_ROWS, _WIDTH = 16, 32


def ids_among_features() -> UserProgram:
    """Return ids up to 5,000 that come in a column of floats beside features."""
    table, net = weight(5000, _WIDTH, scale=0.1), keras.layers.Dense(1)

    def loss(x: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(table, tf.cast(x[:, 0], tf.int32))
        return tf.reduce_mean(net(tf.concat((rows, x[:, 1:]), -1)) ** 2)

    def draw(rng):
        x = rng.normal(size=(_ROWS, 8)).astype("float32")
        x[:, 0] = rng.integers(2049, 5000, _ROWS)
        return x

    return trained(loss, draw)


def places_by_cumulative_sums() -> UserProgram:
    """Return positions that are sums of ones, up to 3,000, and their embeddings."""
    table, mix = weight(3001, 16, scale=0.1), weight(16, 16)

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        places = tf.cumsum(tf.ones_like(x), axis=1)
        rows = tf.gather(table, tf.cast(places, tf.int32))
        return places, tf.reduce_sum(rows @ mix, 1)

    return UserProgram(step, (normal(1, 3000),))


def vector_quantizer() -> UserProgram:
    """Return the nearest of 64 codes by an argmin of distances, and its code."""
    codes, encode = weight(64, _WIDTH), weight(_WIDTH, _WIDTH)

    def loss(x: tf.Tensor) -> tf.Tensor:
        z = x @ encode
        distances = (
            tf.reduce_sum(z**2, 1, keepdims=True)
            - 2 * tf.matmul(z, codes, transpose_b=True)
            + tf.reduce_sum(codes**2, 1)
        )
        nearest = tf.gather(codes, tf.argmin(distances, 1))
        copied = z + tf.stop_gradient(nearest - z)
        commitment = tf.reduce_mean((z - tf.stop_gradient(nearest)) ** 2)
        return tf.reduce_mean((copied - x) ** 2) + 0.25 * commitment

    return trained(loss, normal(_ROWS, _WIDTH))


def experts_by_top_k() -> UserProgram:
    """Return a mixture of four experts, of which two compute for each row."""
    gate, experts = weight(_WIDTH, 4), weight(4, _WIDTH, _WIDTH, scale=0.2)

    def loss(x: tf.Tensor) -> tf.Tensor:
        values, chosen = tf.math.top_k(tf.nn.softmax(x @ gate), 2)
        all_of_them = tf.einsum("bi,eio->beo", x, experts)
        taken = tf.gather(all_of_them, chosen, axis=1, batch_dims=1)
        return tf.reduce_mean((tf.reduce_sum(values[..., None] * taken, 1) - x) ** 2)

    return trained(loss, normal(_ROWS, _WIDTH))


def messages_of_a_graph() -> UserProgram:
    """Return a graph convolution: sums over edges by node, and mean degrees."""
    first, second = weight(_WIDTH, _WIDTH), weight(_WIDTH, 4)

    def loss(x: tf.Tensor, ends: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        source, target = ends[0], ends[1]
        degree = tf.math.unsorted_segment_sum(tf.ones(64), target, _ROWS)
        for kernel in (first, second):
            sent = tf.gather(x @ kernel, source)
            total = tf.math.unsorted_segment_sum(sent, target, _ROWS)
            x = tf.nn.elu(total / tf.maximum(degree, 1.0)[:, None])
        return cross_entropy(y, x)

    return trained(
        loss, normal(_ROWS, _WIDTH), ids(2, 64, below=_ROWS), ids(_ROWS, below=4)
    )


def counts_of_a_confusion_matrix() -> UserProgram:
    """Return how often each class was taken for another, summed up over calls."""
    net = weight(_WIDTH, 8)
    counts = tf.Variable(tf.fill((8, 8), 2048.0))

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        guessed = tf.argmax(x @ net, 1)
        counts.assign_add(tf.math.confusion_matrix(y, guessed, 8, dtype=tf.float32))
        return tf.reduce_sum(tf.linalg.diag_part(counts)) / tf.reduce_sum(counts)

    return UserProgram(step, (normal(_ROWS, _WIDTH), ids(_ROWS, below=8)), 2)


def remainders_of_times() -> UserProgram:
    """Return hours and days out of seconds since a year began, as features."""
    net = keras.layers.Dense(1)

    def loss(seconds: tf.Tensor) -> tf.Tensor:
        hour = tf.math.floormod(tf.floor(seconds / 3600.0), 24.0)
        day = tf.math.floormod(tf.floor(seconds / 86400.0), 7.0)
        angles = tf.stack((hour / 24, day / 7), -1) * 6.2831855
        return tf.reduce_mean(net(tf.concat((tf.sin(angles), tf.cos(angles)), -1)))

    return trained(loss, uniform(_ROWS, high=3e7))
