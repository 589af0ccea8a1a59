"""Dense layers, two hidden ones of width 2048."""

import keras
import numpy as np
from keras import layers

_INPUTS = 1024
_HIDDEN = (2048, 2048)
_CLASSES = 1000


def build() -> keras.Model:
    """Return the network; its output is logits [batch, classes] in float32."""
    inputs = keras.Input((_INPUTS,))
    hidden = inputs
    for units in _HIDDEN:
        hidden = layers.Dense(units, activation="relu")(hidden)
    logits = layers.Dense(_CLASSES)(hidden)
    return keras.Model(inputs, layers.Activation("linear", dtype="float32")(logits))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors [batch, inputs] and class numbers [batch]."""
    vectors = rng.standard_normal((batch, _INPUTS), dtype=np.float32)
    return vectors, rng.integers(_CLASSES, size=batch)
