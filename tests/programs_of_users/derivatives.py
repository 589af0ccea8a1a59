"""Derivatives of derivatives, and gradients that no optimizer takes."""

from __future__ import annotations

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


def gradient_penalty() -> UserProgram:
    """Return the critic of WGAN-GP: the norm of a slope is to be one."""
    critic = network(1, first="tanh")

    def loss(real: tf.Tensor, fake: tf.Tensor, mix: tf.Tensor) -> tf.Tensor:
        between = mix * real + (1 - mix) * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            score = critic(between)
        slopes = tape.gradient(score, between)
        norms = tf.sqrt(tf.reduce_sum(slopes**2, 1) + 1e-12)
        penalty = tf.reduce_mean((norms - 1) ** 2)
        return tf.reduce_mean(critic(fake) - critic(real)) + 10 * penalty

    return trained(
        loss,
        normal(_ROWS, _WIDTH),
        normal(_ROWS, _WIDTH, offset=0.5),
        lambda rng: rng.uniform(size=(_ROWS, 1)).astype("float32"),
    )


def physics_informed() -> UserProgram:
    """Return the residual of Burgers' equation: u_t + u u_x - 0.01 u_xx."""
    net = network(1, first="tanh")

    def loss(t: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape(persistent=True) as first:
                first.watch((t, x))
                u = net(tf.concat((t, x), 1))
            u_t, u_x = first.gradient(u, t), first.gradient(u, x)
        u_xx = second.gradient(u_x, x)
        return tf.reduce_mean((u_t + u * u_x - 0.01 * u_xx) ** 2)

    return trained(loss, normal(_ROWS, 1), normal(_ROWS, 1))


def product_with_the_hessian() -> UserProgram:
    """Return a Hessian times a vector by a tape within a tape."""
    kernel = weight(_WIDTH, _WIDTH)

    def step(x: tf.Tensor, direction: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_mean(tf.tanh(x @ kernel) ** 2)
            along = tf.reduce_sum(inner.gradient(loss, kernel) * direction)
        return outer.gradient(along, kernel)

    return UserProgram(step, (normal(_ROWS, _WIDTH), normal(_WIDTH, _WIDTH)))


def learning_to_learn() -> UserProgram:
    """Return MAML: the loss after two inner steps, whose gradient is taken."""
    kernel = weight(_WIDTH, 4)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        fast = tf.convert_to_tensor(kernel)
        for _ in range(2):
            with tf.GradientTape() as tape:
                tape.watch(fast)
                inner = tf.reduce_mean((x[:8] @ fast - y[:8]) ** 2)
            fast = fast - 0.1 * tape.gradient(inner, fast)
        return tf.reduce_mean((x[8:] @ fast - y[8:]) ** 2)

    return trained(loss, normal(_ROWS, _WIDTH), normal(_ROWS, 4))


def saliency() -> UserProgram:
    """Return the gradient of the best class' score by the input."""
    net = network(10, first="tanh")
    net.build((None, _WIDTH))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            best = tf.reduce_max(net(x), 1)
        return tape.gradient(best, x)

    return UserProgram(step, (normal(_ROWS, _WIDTH),))


def adversarial_examples() -> UserProgram:
    """Return inputs after three steps by the sign of a gradient."""
    net = network(10, first="tanh")
    net.build((None, _WIDTH))

    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        moved, slope = x, x
        for _ in range(3):
            with tf.GradientTape() as tape:
                tape.watch(moved)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, net(moved))
            slope = tape.gradient(each, moved)
            moved = tf.clip_by_value(moved + 0.01 * tf.sign(slope), x - 0.02, x + 0.02)
        return moved, slope

    return UserProgram(step, (normal(_ROWS, _WIDTH), ids(_ROWS, below=10)))


def jacobian_of_a_network() -> UserProgram:
    """Return the derivative of each output by each input, for each row."""
    net = network(4, first="tanh")
    net.build((None, _WIDTH))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = net(x)
        return tape.batch_jacobian(y, x)

    return UserProgram(step, (normal(_ROWS, _WIDTH),))
