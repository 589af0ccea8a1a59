"""What people do with gradients and weights around a step."""

from __future__ import annotations

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
_BATCH = (normal(_ROWS, _WIDTH), ids(_ROWS, below=10))


class _Network:
    """Two products, their loss and their gradients."""

    def __init__(self) -> None:
        self.variables = [weight(_WIDTH, _WIDTH), weight(_WIDTH, 10)]

    def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        first, second = self.variables
        logits = tf.nn.gelu(x @ first) @ second
        return cross_entropy(y, logits)

    def gradients(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list]:
        with tf.GradientTape() as tape:
            value = self.loss(x, y)
        return value, tape.gradient(value, self.variables)


def _slots(net: _Network) -> list[tf.Variable]:
    return [tf.Variable(tf.zeros_like(v)) for v in net.variables]


def clipping() -> UserProgram:
    """Return a step by gradients whose norm in all is at most 0.1."""
    net = _Network()

    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        value, gradients = net.gradients(x, y)
        clipped, norm = tf.clip_by_global_norm(gradients, 0.1)
        for variable, gradient in zip(net.variables, clipped, strict=True):
            variable.assign_sub(0.5 * gradient)
        return value, norm

    return UserProgram(step, _BATCH, 2)


def accumulation() -> UserProgram:
    """Return sums of gradients, applied at every second call."""
    net = _Network()
    sums, calls = _slots(net), tf.Variable(0)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        value, gradients = net.gradients(x, y)
        for total, gradient in zip(sums, gradients, strict=True):
            total.assign_add(gradient / 2)
        if calls.assign_add(1) % 2 == 0:
            for variable, total in zip(net.variables, sums, strict=True):
                variable.assign_sub(0.1 * total)
                total.assign(tf.zeros_like(total))
        return value

    return UserProgram(step, _BATCH, 2)


def average_of_weights() -> UserProgram:
    """Return weights and their average by a factor of 0.9999."""
    net = _Network()
    averages = [tf.Variable(v) for v in net.variables]

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        value, gradients = net.gradients(x, y)
        for variable, gradient, average in zip(
            net.variables, gradients, averages, strict=True
        ):
            variable.assign_sub(0.1 * gradient)
            average.assign(0.9999 * average + 0.0001 * variable)
        return value

    return UserProgram(step, _BATCH, 2)


def adam_by_hand() -> UserProgram:
    """Return Adam in elementwise ops, with an epsilon of 1e-8."""
    net = _Network()
    means, squares, count = _slots(net), _slots(net), tf.Variable(0.0)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        value, gradients = net.gradients(x, y)
        t = count.assign_add(1.0)
        rate = 1e-3 * tf.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for variable, gradient, mean, square in zip(
            net.variables, gradients, means, squares, strict=True
        ):
            m = mean.assign(0.9 * mean + 0.1 * gradient)
            s = square.assign(0.999 * square + 0.001 * gradient**2)
            variable.assign_sub(rate * m / (tf.sqrt(s) + 1e-8))
        return value

    return UserProgram(step, _BATCH, 2)


def sharpness_aware() -> UserProgram:
    """Return a step by the gradient at a point uphill."""
    net = _Network()

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        value, gradients = net.gradients(x, y)
        size = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
        for variable, gradient in zip(net.variables, gradients, strict=True):
            variable.assign_add(size * gradient)
        _, uphill = net.gradients(x, y)
        for variable, gradient, other in zip(
            net.variables, gradients, uphill, strict=True
        ):
            variable.assign_sub(size * gradient + 0.1 * other)
        return value

    return UserProgram(step, _BATCH, 2)


def weight_decay_and_schedule() -> UserProgram:
    """Return Keras' AdamW with a warm-up and a cosine."""
    net = _Network()
    rate = keras.optimizers.schedules.CosineDecay(
        1e-5, 100, warmup_target=1e-3, warmup_steps=10
    )
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.05, clipnorm=1.0)
    return trained(net.loss, *_BATCH, optimizer=optimizer)


def penalty_of_weights() -> UserProgram:
    """Return a loss with 1e-4 times the squares of all weights."""
    net = _Network()

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        squares = tf.add_n([tf.nn.l2_loss(v) for v in net.variables])
        return net.loss(x, y) + 1e-4 * squares

    return trained(loss, *_BATCH)


def two_losses() -> UserProgram:
    """Return two tasks weighted by learned uncertainties."""
    net = _Network()
    head = weight(_WIDTH, 1)
    logs = tf.Variable([0.0, 3.0])

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        second = tf.reduce_mean((tf.nn.gelu(x @ net.variables[0]) @ head - 50.0) ** 2)
        both = tf.stack((net.loss(x, y), second))
        return tf.reduce_sum(tf.exp(-logs) * both + logs)

    return trained(
        loss, *_BATCH, optimizer=keras.optimizers.SGD(1e-3, momentum=0.9, nesterov=True)
    )
