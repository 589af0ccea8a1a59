"""Probabilities: flows, mixtures, samplers, generative models."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.programs_of_users.building import (
    UserProgram,
    network,
    normal,
    trained,
    uniform,
    weight,
)

_ROWS, _WIDTH = 16, 32
_LOG_2PI = float(np.log(2 * np.pi))


def _gaussian(x: tf.Tensor, mean: tf.Tensor, log_scale: tf.Tensor) -> tf.Tensor:
    return -0.5 * ((x - mean) * tf.exp(-log_scale)) ** 2 - log_scale - 0.5 * _LOG_2PI


def coupling_flow() -> UserProgram:
    """Return RealNVP: two couplings and the logarithm of their determinants."""
    nets = [network(_WIDTH) for _ in range(2)]

    def loss(x: tf.Tensor) -> tf.Tensor:
        total = tf.zeros(_ROWS)
        for net in nets:
            a, b = tf.split(x, 2, -1)
            log_scale, shift = tf.split(net(a), 2, -1)
            log_scale = tf.tanh(log_scale)
            x = tf.concat((b * tf.exp(log_scale) + shift, a), -1)
            total += tf.reduce_sum(log_scale, -1)
        density = tf.reduce_sum(_gaussian(x, 0.0, tf.zeros_like(x)), -1)
        return -tf.reduce_mean(density + total)

    return trained(loss, normal(_ROWS, _WIDTH))


def variational_autoencoder() -> UserProgram:
    """Return a VAE with a weight of 0.5 on its divergence."""
    encoder, decoder = network(16), network(_WIDTH)

    def loss(x: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        mean, log_variance = tf.split(encoder(x), 2, -1)
        z = mean + tf.exp(0.5 * log_variance) * noise
        logits = decoder(z)
        each = tf.nn.sigmoid_cross_entropy_with_logits(x, logits)
        divergence = -0.5 * tf.reduce_sum(
            1 + log_variance - mean**2 - tf.exp(log_variance), -1
        )
        return tf.reduce_mean(tf.reduce_sum(each, -1) + 0.5 * divergence)

    return trained(loss, uniform(_ROWS, _WIDTH), normal(_ROWS, 8))


def mixture_density() -> UserProgram:
    """Return the likelihood of a mixture of five normal densities."""
    net = network(15)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits, mean, log_scale = tf.split(net(x), 3, -1)
        each = tf.nn.log_softmax(logits) + _gaussian(y[:, None], mean, log_scale)
        return -tf.reduce_mean(tf.reduce_logsumexp(each, -1))

    return trained(loss, normal(_ROWS, _WIDTH), normal(_ROWS))


def gaussian_process() -> UserProgram:
    """Return the marginal likelihood of a Gaussian process on learned features."""
    features = weight(_WIDTH, 8)

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        z = x @ features
        squares = tf.reduce_sum(z**2, 1)
        distances = squares[:, None] + squares - 2 * tf.matmul(z, z, transpose_b=True)
        kernel = tf.exp(-0.5 * distances) + 1e-2 * tf.eye(_ROWS)
        root = tf.linalg.cholesky(kernel)
        solved = tf.linalg.cholesky_solve(root, y[:, None])[:, 0]
        log_determinant = 2 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(root)))
        return 0.5 * (tf.reduce_sum(y * solved) + log_determinant)

    return trained(loss, normal(_ROWS, _WIDTH), normal(_ROWS))


def diffusion() -> UserProgram:
    """Return the training of DDPM, with 1,000 levels of noise."""
    net = network(_WIDTH)
    betas = np.linspace(1e-4, 0.02, 1000)
    kept = tf.constant(np.cumprod(1 - betas), tf.float32)

    def loss(x: tf.Tensor, noise: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
        share = tf.gather(kept, tf.cast(level, tf.int32))[:, None]
        noisy = tf.sqrt(share) * x + tf.sqrt(1 - share) * noise
        rates = tf.exp(-tf.range(8.0) * 1.15)
        angles = level[:, None] * rates
        told = tf.concat((noisy, tf.sin(angles), tf.cos(angles)), -1)
        return tf.reduce_mean((net(told) - noise) ** 2)

    return trained(
        loss,
        normal(_ROWS, _WIDTH),
        normal(_ROWS, _WIDTH),
        lambda rng: rng.integers(0, 1000, _ROWS).astype("float32"),
    )


def hamiltonian_sampler() -> UserProgram:
    """Return ten leapfrog steps on a regression's posterior, and their acceptance."""
    kernel = weight(_WIDTH, 8)

    def step(x: tf.Tensor, y: tf.Tensor, w: tf.Tensor, p: tf.Tensor) -> list:
        def energy_and_slope(w):
            with tf.GradientTape() as tape:
                tape.watch(w)
                guess = tf.linalg.matvec(tf.tanh(x @ kernel), w)
                energy = 0.5 * tf.reduce_sum((guess - y) ** 2) + 0.5 * tf.reduce_sum(
                    w**2
                )
            return energy, tape.gradient(energy, w)

        before, slope = energy_and_slope(w)
        start = before + 0.5 * tf.reduce_sum(p**2)

        def body(t, w, p, slope, _):
            p = p - 0.02 * slope
            w = w + 0.04 * p
            energy, slope = energy_and_slope(w)
            return t + 1, w, p - 0.02 * slope, slope, energy

        _, w, p, _, energy = tf.while_loop(
            lambda t, *_: t < 10, body, (0, w, p, slope, before)
        )
        return [w, tf.exp(start - energy - 0.5 * tf.reduce_sum(p**2))]

    return UserProgram(
        step,
        (normal(_ROWS, _WIDTH), normal(_ROWS), normal(8), normal(8)),
        iterations=10,
    )


def adversarial_pair() -> UserProgram:
    """Return a GAN: two optimizers, two tapes, logarithms of sigmoids."""
    generator, critic = network(_WIDTH), network(1)
    first, second = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)
    generator.build((None, 8))
    critic.build((None, _WIDTH))
    first.build(generator.trainable_variables)
    second.build(critic.trainable_variables)
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(real: tf.Tensor, noise: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as of_generator, tf.GradientTape() as of_critic:
            fake = generator(noise)
            true, false = critic(real), critic(fake)
            made = entropy(tf.ones_like(false), false)
            told = entropy(tf.ones_like(true), true) + entropy(
                tf.zeros_like(false), false
            )
        slopes = of_generator.gradient(made, generator.trainable_variables)
        first.apply(slopes, generator.trainable_variables)
        slopes = of_critic.gradient(told, critic.trainable_variables)
        second.apply(slopes, critic.trainable_variables)
        return made, told

    return UserProgram(step, (normal(_ROWS, _WIDTH), normal(_ROWS, 8)), 2)
