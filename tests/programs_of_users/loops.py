"""Loops: recurrences, scans, solvers, whose state must not be rounded."""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.programs_of_users.building import UserProgram, ids, normal, trained, weight

_ROWS, _WIDTH, _TIMES = 8, 32, 12


def recurrence_by_hand() -> UserProgram:
    """Return a recurrence in a Python loop that autograph turns into a while loop."""
    enter, stay, out = weight(_WIDTH, _WIDTH), weight(_WIDTH, _WIDTH), weight(_WIDTH, 1)

    def loss(x: tf.Tensor) -> tf.Tensor:
        h = tf.zeros((_ROWS, _WIDTH))
        for t in tf.range(_TIMES):
            h = tf.tanh(x[:, t] @ enter + h @ stay)
        return tf.reduce_mean((h @ out - 1.0) ** 2)

    return trained(loss, normal(_ROWS, _TIMES, _WIDTH), iterations=_TIMES)


def bidirectional_lstm() -> UserProgram:
    """Return Keras' layers with a mask of zeros."""
    layers = [
        keras.layers.Masking(),
        keras.layers.Bidirectional(keras.layers.LSTM(16, return_sequences=True)),
        keras.layers.GRU(16),
        keras.layers.Dense(1),
    ]
    net = keras.Sequential(layers)

    def draw(rng):
        x = rng.normal(size=(_ROWS, _TIMES, _WIDTH)).astype("float32")
        x[: _ROWS // 2, _TIMES // 2 :] = 0
        return x

    return trained(
        lambda x: tf.reduce_mean((net(x) - 1.0) ** 2), draw, iterations=_TIMES
    )


def scan_of_a_filter() -> UserProgram:
    """Return a Kalman filter over measurements by tf.scan."""
    move = tf.Variable(0.95 * tf.eye(4) + 0.05)
    see = weight(4, 2)

    def step(measured: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def update(state, z):
            mean, spread = state
            mean = tf.linalg.matvec(move, mean)
            spread = move @ spread @ tf.transpose(move) + 0.01 * tf.eye(4)
            seen = tf.transpose(see) @ spread @ see + 0.1 * tf.eye(2)
            gain = spread @ see @ tf.linalg.inv(seen)
            error = z - tf.linalg.matvec(tf.transpose(see), mean)
            mean = mean + tf.linalg.matvec(gain, error)
            return mean, spread - gain @ tf.transpose(see) @ spread

        means, spreads = tf.scan(update, measured, (tf.zeros(4), tf.eye(4)))
        return means[-1], spreads[-1]

    return UserProgram(step, (normal(_TIMES, 2),), iterations=_TIMES)


def differential_equation() -> UserProgram:
    """Return a neural equation, solved by Runge and Kutta's method in 20 steps."""
    net = keras.Sequential([keras.layers.Dense(_WIDTH, "tanh"), keras.layers.Dense(8)])

    def loss(x: tf.Tensor) -> tf.Tensor:
        size = 0.05

        def body(t, y):
            a = net(y)
            b = net(y + size / 2 * a)
            c = net(y + size / 2 * b)
            d = net(y + size * c)
            return t + 1, y + size / 6 * (a + 2 * b + 2 * c + d)

        start = (tf.constant(0), x)
        _, y = tf.while_loop(lambda t, _: t < 20, body, start, maximum_iterations=20)
        return tf.reduce_mean((y - 1.0) ** 2)

    return trained(loss, normal(_ROWS, 8), iterations=20)


def fixed_point() -> UserProgram:
    """Return a deep equilibrium: a layer until its change is below 1e-3."""
    mix, enter = weight(_WIDTH, _WIDTH, scale=0.05), weight(_WIDTH, _WIDTH)

    def step(x: tf.Tensor) -> tf.Tensor:
        def goes_on(t, before, z):
            return (t < 30) & (tf.norm(z - before) > 1e-3 * tf.norm(z))

        def body(t, _, z):
            return t + 1, z, tf.tanh(z @ mix + x @ enter)

        start = (0, tf.ones_like(x), tf.zeros_like(x))
        return tf.while_loop(goes_on, body, start)[2]

    return UserProgram(step, (normal(_ROWS, _WIDTH),), iterations=30)


def mapped_rows() -> UserProgram:
    """Return a product for each row by tf.map_fn, and its gradient."""
    first, second = weight(_WIDTH, _WIDTH), weight(_WIDTH, 1)

    def loss(x: tf.Tensor) -> tf.Tensor:
        rows = tf.map_fn(lambda row: tf.nn.relu(row @ first) @ second, x)
        return tf.reduce_mean(tf.abs(rows))

    return trained(loss, normal(_ROWS, 4, _WIDTH), iterations=_ROWS)


def text_with_a_cache() -> UserProgram:
    """Return greedy decoding of 8 words with a cache of keys and values."""
    table, mix = weight(64, _WIDTH), weight(_WIDTH, 3 * _WIDTH)

    def step(first: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        cache = tf.zeros((2, 8, 4, _WIDTH))
        word, logits = first, tf.zeros((4, 64))
        words = tf.TensorArray(tf.int32, 8)
        for t in tf.range(8):
            x = tf.gather(table, word)
            q, k, v = tf.split(x @ mix, 3, -1)
            cache = tf.tensor_scatter_nd_update(
                cache, tf.stack(([0, t], [1, t])), tf.stack((k, v))
            )
            seen = tf.cast(tf.range(8) <= t, tf.float32)[:, None]
            scores = tf.reduce_sum(q * cache[0], -1) / 5.66 - 1e9 * (1 - seen)
            mixed = tf.reduce_sum(tf.nn.softmax(scores, 0)[..., None] * cache[1], 0)
            logits = tf.matmul(x + mixed, table, transpose_b=True)
            word = tf.argmax(logits, -1, output_type=tf.int32)
            words = words.write(t, word)
        return words.stack(), logits

    return UserProgram(step, (ids(4, below=64),), iterations=8)
