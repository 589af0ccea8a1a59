"""A stack of dense layers on vectors, for models of several sizes."""

from collections.abc import Sequence

import keras
import numpy as np
from keras import layers


def build(inputs: int, hidden: Sequence[int], classes: int) -> keras.Model:
    """Return the network; its output is logits [batch, classes] in float32."""
    vectors = keras.Input((inputs,))
    values = vectors
    for units in hidden:
        values = layers.Dense(units, activation="relu")(values)
    logits = layers.Dense(classes)(values)
    return keras.Model(vectors, layers.Activation("linear", dtype="float32")(logits))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(
    rng: np.random.Generator, batch: int, *, inputs: int, classes: int, **_: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors [batch, inputs] and class numbers [batch]."""
    vectors = rng.standard_normal((batch, inputs), dtype=np.float32)
    return vectors, rng.integers(classes, size=batch)
