"""Models with planted culprits: ops that 16 bits do not suffice for."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

WIDTH = 32


def images(count: int = 8, size: int = 8) -> tf.Tensor:
    """Return made-up images."""
    return tf.constant(_normal((count, size, size, 3)))


def rows(count: int = 16) -> tf.Tensor:
    """Return made-up rows of numbers."""
    return tf.constant(_normal((count, WIDTH)))


def heads(culprits: Sequence[int], count: int = 12) -> keras.Model:
    """Return a model of which some heads yield more than float16 holds."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((WIDTH,))
    hidden, outputs = inputs, []
    for i in range(count):
        hidden = keras.layers.Dense(WIDTH, activation="tanh", name=f"hidden_{i}")(
            hidden
        )
        outputs.append(keras.layers.Dense(8, name=f"head_{i}")(hidden))
    model = keras.Model(inputs, outputs)
    for i in culprits:
        kernel, bias = model.get_layer(f"head_{i}").get_weights()
        model.get_layer(f"head_{i}").set_weights([kernel * 1.5e5, bias])
    return model


def first_of(model: keras.Model) -> keras.Model:
    """Return the part of a model that leads to its first output."""
    return keras.Model(model.inputs, model.outputs[0])


class Shifted(keras.layers.Layer):
    """Subtracts what it has added, after a mean that is computed in float32."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(x + tf.cast(self.shift, x.dtype), -1) - self.shift

    def build(self, shape: object) -> None:
        self.shift = self.add_weight(shape=(), initializer="ones", name="shift")


def shifted(culprits: Sequence[int], count: int = 10) -> keras.Model:
    """Return a model of which some parts cancel almost all that they add up."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((WIDTH,))
    hidden, outputs = inputs, []
    for i in range(count):
        hidden = keras.layers.Dense(WIDTH, name=f"hidden_{i}")(hidden)
        outputs.append(Shifted(name=f"shifted_{i}")(hidden))
    model = keras.Model(inputs, outputs)
    for i in culprits:
        model.get_layer(f"shifted_{i}").set_weights([np.float32(5000.0)])
    return model


def residual(blocks: int = 4) -> keras.Model:
    """Return a small residual network with batch normalization, as it begins."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(16, 3, padding="same")(inputs)
    for _ in range(blocks):
        y = x
        for _ in range(2):
            y = keras.layers.Conv2D(16, 3, padding="same", use_bias=False)(y)
            y = keras.layers.BatchNormalization()(y)
            y = keras.layers.ReLU()(y)
        x = keras.layers.Add()([x, y])
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def normalized() -> keras.Model:
    """Return a network whose second normalization reads means near zero."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 3))
    x = inputs
    for name in ("first", "second"):
        x = keras.layers.Conv2D(16, 3, use_bias=False, padding="same")(x)
        x = keras.layers.BatchNormalization(name=name)(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def zero_gradients() -> keras.Model:
    """Return a network with biases that change nothing: of a normalization, of keys."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(16, 3, name="conv")(inputs)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.Reshape((36, 16))(keras.layers.ReLU()(x))
    x = keras.layers.MultiHeadAttention(2, 8, name="heads")(x, x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, keras.layers.Dense(10, name="last")(x))


def training_step(
    model: keras.Model, optimizer: keras.optimizers.Optimizer | None = None
) -> tf.types.experimental.PolymorphicFunction:
    """Return a function that takes one step towards given results."""
    chosen = optimizer or keras.optimizers.SGD(0.1)
    chosen.build(model.trainable_variables)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        pairs = zip(gradients, model.trainable_variables, strict=True)
        chosen.apply_gradients(pairs)
        return loss

    return step


def _normal(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
