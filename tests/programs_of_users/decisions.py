"""Recommendations, reinforcement learning, sound, sequences of labels."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.programs_of_users.building import (
    UserProgram,
    ids,
    network,
    normal,
    trained,
    weight,
)

_ROWS, _WIDTH = 16, 32


def factors_of_ratings() -> UserProgram:
    """Return the scores of all items for each user, with biases around 3.5."""
    users, items = weight(300, 16, scale=0.1), weight(64, 16, scale=0.1)
    biases = weight(64, scale=0.1)

    def loss(user: tf.Tensor, item: tf.Tensor, rating: tf.Tensor) -> tf.Tensor:
        scores = tf.matmul(tf.gather(users, user), items, transpose_b=True)
        guess = tf.gather(3.5 + scores + biases, item, axis=1, batch_dims=1)
        return tf.reduce_mean((guess - rating) ** 2)

    return trained(
        loss, ids(_ROWS, below=300), ids(_ROWS, below=64), normal(_ROWS, offset=3.5)
    )


def interactions_of_features() -> UserProgram:
    """Return DLRM: products of all pairs of embeddings beside dense features."""
    tables, bottom, top = weight(6 * 100, 16, scale=0.2), network(16), network(1)

    def loss(x: tf.Tensor, chosen: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        rows = tf.gather(tables, chosen + 100 * tf.range(6))
        vectors = tf.concat((bottom(x)[:, None], rows), 1)
        pairs = tf.matmul(vectors, vectors, transpose_b=True)
        below = np.tril(np.ones((7, 7), bool), -1)
        taken = tf.boolean_mask(pairs, below, axis=1)
        logits = top(tf.concat((bottom(x), taken), 1))[:, 0]
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, logits))

    return trained(
        loss,
        normal(_ROWS, _WIDTH),
        ids(_ROWS, 6, below=100),
        lambda rng: rng.integers(0, 2, _ROWS).astype("float32"),
    )


def action_values() -> UserProgram:
    """Return DQN: a target by another network's best action, and Huber's loss."""
    net, other = network(4), weight(_WIDTH, 4)

    def loss(
        state: tf.Tensor, action: tf.Tensor, reward: tf.Tensor, after: tf.Tensor
    ) -> tf.Tensor:
        best = tf.reduce_max(after @ other, 1)
        target = tf.stop_gradient(reward + 0.99 * best)
        value = tf.gather(net(state), action, axis=1, batch_dims=1)
        return tf.reduce_mean(keras.losses.huber(target[:, None], value[:, None]))

    return trained(
        loss,
        normal(_ROWS, _WIDTH),
        ids(_ROWS, below=4),
        normal(_ROWS, scale=10.0),
        normal(_ROWS, _WIDTH),
    )


def ratios_of_policies() -> UserProgram:
    """Return PPO: the exponent of a difference of logarithms, clipped at 0.2."""
    net = network(4)

    def loss(
        state: tf.Tensor, action: tf.Tensor, old: tf.Tensor, advantage: tf.Tensor
    ) -> tf.Tensor:
        logits = tf.nn.log_softmax(net(state))
        chosen = tf.gather(logits, action, axis=1, batch_dims=1)
        ratio = tf.exp(chosen - old)
        clipped = tf.clip_by_value(ratio, 0.8, 1.2)
        entropy = -tf.reduce_mean(tf.reduce_sum(tf.exp(logits) * logits, -1))
        gain = tf.reduce_mean(tf.minimum(ratio * advantage, clipped * advantage))
        return -gain - 0.01 * entropy

    return trained(
        loss,
        normal(_ROWS, _WIDTH),
        ids(_ROWS, below=4),
        normal(_ROWS, scale=0.1, offset=-1.4),
        normal(_ROWS),
    )


def squashed_actions() -> UserProgram:
    """Return the density of SAC: a logarithm of 1 - tanh(u)^2 + 1e-6."""
    net = network(8)

    def loss(state: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        mean, log_scale = tf.split(net(state), 2, -1)
        log_scale = tf.clip_by_value(log_scale, -20.0, 2.0)
        u = mean + tf.exp(log_scale) * noise
        density = -0.5 * noise**2 - log_scale - tf.math.log(1 - tf.tanh(u) ** 2 + 1e-6)
        return tf.reduce_mean(tf.reduce_sum(density, -1))

    return trained(loss, normal(_ROWS, _WIDTH), normal(_ROWS, 4))


def returns_of_an_episode() -> UserProgram:
    """Return discounted returns of 200 steps and the loss of a critic."""
    critic = network(1)

    def loss(states: tf.Tensor, rewards: tf.Tensor) -> tf.Tensor:
        returns = tf.scan(
            lambda total, reward: reward + 0.99 * total,
            rewards,
            tf.zeros(()),
            reverse=True,
        )
        return tf.reduce_mean((critic(states)[:, 0] - returns) ** 2)

    return trained(
        loss,
        normal(200, _WIDTH),
        normal(200, offset=1.0),
        optimizer=keras.optimizers.SGD(1e-4),
        iterations=200,
    )


def spectrum_of_sound() -> UserProgram:
    """Return the logarithm of a mel spectrogram before a layer."""
    mel = tf.signal.linear_to_mel_weight_matrix(32, 65, 16000)
    head = keras.layers.Dense(4)

    def loss(sound: tf.Tensor) -> tf.Tensor:
        spectrum = tf.abs(tf.signal.stft(sound, 128, 64)) ** 2
        logs = tf.math.log(spectrum @ mel + 1e-6)
        return tf.reduce_mean((head(logs) - 1.0) ** 2)

    return trained(
        loss, normal(4, 1024, scale=0.1), optimizer=keras.optimizers.SGD(1e-3)
    )


def fields_of_labels() -> UserProgram:
    """Return a conditional random field: a logarithm of sums over all paths."""
    net, moves = network(6), weight(6, 6)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        scores = net(x)
        one = tf.one_hot(y, 6)
        right = tf.reduce_sum(scores * one, (1, 2)) + tf.reduce_sum(
            tf.matmul(one[:, :-1], moves) * one[:, 1:], (1, 2)
        )
        total = scores[:, 0]
        for t in range(1, 8):
            total = scores[:, t] + tf.reduce_logsumexp(
                total[:, :, None] + moves[None], 1
            )
        return tf.reduce_mean(tf.reduce_logsumexp(total, 1) - right)

    return trained(loss, normal(4, 8, _WIDTH), ids(4, 8, below=6))
