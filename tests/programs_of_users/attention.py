"""Attention with the masks and positions that people give it."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tests.programs_of_users.building import UserProgram, ids, normal, trained, weight

_BATCH, _LENGTH, _WIDTH, _HEADS = 2, 16, 32, 4


def _attending(
    masked: Callable[[tf.Tensor], tf.Tensor],
    turned: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> UserProgram:
    """Return the training of one attention by hand.

    Args:
      masked: a function of its scores, [batch, heads, length, length].
      turned: a function of queries and keys, [batch, heads, length, width].
    """
    mix, out = weight(_WIDTH, 3 * _WIDTH), weight(_WIDTH, _WIDTH)

    def heads(x: tf.Tensor) -> tf.Tensor:
        shape = (_BATCH, _LENGTH, _HEADS, _WIDTH // _HEADS)
        return tf.transpose(tf.reshape(x, shape), [0, 2, 1, 3])

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        q, k, v = (heads(part) for part in tf.split(tf.matmul(x, mix), 3, -1))
        scores = tf.matmul(turned(q), turned(k), transpose_b=True)
        weights = tf.nn.softmax(masked(scores * (_WIDTH // _HEADS) ** -0.5))
        seen = tf.transpose(tf.matmul(weights, v), [0, 2, 1, 3])
        result = x + tf.matmul(tf.reshape(seen, (_BATCH, _LENGTH, _WIDTH)), out)
        return tf.reduce_mean((result - y) ** 2)

    shape = (_BATCH, _LENGTH, _WIDTH)
    return trained(loss, normal(*shape), normal(*shape))


def _later() -> np.ndarray:
    return np.triu(np.ones((_LENGTH, _LENGTH), np.float32), 1)


def masked_by_minus_1e9() -> UserProgram:
    """Return a causal mask that adds -1e9."""
    return _attending(lambda scores: scores + _later() * -1e9)


def masked_by_the_least_float() -> UserProgram:
    """Return a causal mask that adds the least number of float32."""
    return _attending(lambda scores: scores + _later() * scores.dtype.min)


def masked_by_infinity() -> UserProgram:
    """Return a causal mask that puts minus infinity in."""
    return _attending(lambda scores: tf.where(_later() > 0, -np.inf, scores))


def slopes_of_distance() -> UserProgram:
    """Return ALiBi: a slope of each head times the distance."""
    places = np.arange(_LENGTH)
    distance = np.abs(places[:, None] - places).astype(np.float32)
    slopes = 2.0 ** -np.arange(1, _HEADS + 1, dtype=np.float32)
    return _attending(
        lambda scores: scores - slopes[:, None, None] * distance + _later() * -1e9
    )


def rotated_positions() -> UserProgram:
    """Return rotary positions around 3,000, whose angles 16 bits do not hold."""

    def turned(x: tf.Tensor) -> tf.Tensor:
        half = x.shape[-1] // 2
        rates = 10000.0 ** (-tf.range(half, dtype=tf.float32) / half)
        angles = tf.range(3000.0, 3000.0 + _LENGTH)[:, None] * rates
        a, b = tf.split(x, 2, -1)
        cos, sin = tf.cos(angles), tf.sin(angles)
        return tf.concat((a * cos - b * sin, a * sin + b * cos), -1)

    return _attending(lambda scores: scores + _later() * -1e9, turned)


def padded_batches() -> UserProgram:
    """Return Keras' attention with a mask of lengths, and a mean over what is there."""
    layer = keras.layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS)
    head = keras.layers.Dense(1)

    def loss(x: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        there = tf.sequence_mask(lengths, _LENGTH)
        mixed = layer(x, x, attention_mask=there[:, None])
        kept = tf.cast(there, tf.float32)[..., None]
        mean = tf.reduce_sum(mixed * kept, 1) / tf.reduce_sum(kept, 1)
        return tf.reduce_mean(head(mean) ** 2)

    return trained(
        loss, normal(_BATCH, _LENGTH, _WIDTH), ids(_BATCH, below=_LENGTH, least=1)
    )


def masked_words() -> UserProgram:
    """Return a masked language model: words of some places are guessed."""
    table = weight(200, _WIDTH, scale=0.1)
    mix = keras.layers.Dense(_WIDTH, "gelu")

    def loss(words: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        hidden = mix(tf.gather(table, words))
        guessed = tf.gather(hidden, places, axis=1, batch_dims=1)
        logits = tf.matmul(guessed, table, transpose_b=True)
        right = tf.gather(words, places, axis=1, batch_dims=1)
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(right, logits)
        known = tf.cast(right != 0, tf.float32)
        return tf.reduce_sum(each * known) / (tf.reduce_sum(known) + 1e-5)

    return trained(loss, ids(_BATCH, _LENGTH, below=200), ids(_BATCH, 4, below=_LENGTH))
