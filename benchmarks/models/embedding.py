"""A table of 1,000,000 rows of 64 numbers in front of a small dense network."""

import keras
import numpy as np
from keras import layers

_ROWS = 1_000_000
_WIDTH = 64
_LENGTH = 20


def build() -> keras.Model:
    """Return the network; its output is one logit [batch, 1] in float32."""
    rows = keras.Input((_LENGTH,), dtype="int32")
    hidden = layers.Flatten()(layers.Embedding(_ROWS, _WIDTH)(rows))
    for units in (1024, 1024):
        hidden = layers.Dense(units, activation="relu")(hidden)
    logit = layers.Dense(1)(hidden)
    return keras.Model(rows, layers.Activation("linear", dtype="float32")(logit))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.BinaryCrossentropy(from_logits=True)


def sample(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers [batch, length] and labels [batch, 1]."""
    rows = rng.integers(_ROWS, size=(batch, _LENGTH), dtype=np.int32)
    return rows, rng.integers(2, size=(batch, 1)).astype(np.float32)
