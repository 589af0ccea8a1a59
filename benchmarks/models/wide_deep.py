"""Wide & deep: a linear model and a deep one over 26 categories and 13 numbers."""

import keras
import numpy as np
from keras import layers

_CATEGORIES = 26
_NUMBERS = 13
_VOCABULARY = 5000
_WIDTH = 16


def build(*, vocabulary: int = _VOCABULARY, width: int = _WIDTH) -> keras.Model:
    """Return the network; its output is one logit [batch, 1] in float32."""
    categories = keras.Input((_CATEGORIES,), dtype="int32")
    numbers = keras.Input((_NUMBERS,))
    columns = [categories[:, column] for column in range(_CATEGORIES)]
    wide = layers.Add()([layers.Embedding(vocabulary, 1)(column) for column in columns])
    deep = [layers.Embedding(vocabulary, width)(column) for column in columns]
    hidden = layers.Concatenate()([*deep, numbers])
    for units in (1024, 1024, 512):
        hidden = layers.Dense(units, activation="relu")(hidden)
    logit = layers.Dense(1)(hidden) + wide
    linear = layers.Activation("linear", dtype="float32")
    return keras.Model([categories, numbers], linear(logit))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.BinaryCrossentropy(from_logits=True)


def sample(
    rng: np.random.Generator, batch: int, *, vocabulary: int = _VOCABULARY, **_: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return categories [batch, 26] with numbers [batch, 13], and clicks [batch, 1]."""
    categories = rng.integers(vocabulary, size=(batch, _CATEGORIES), dtype=np.int32)
    numbers = rng.standard_normal((batch, _NUMBERS), dtype=np.float32)
    clicks = rng.integers(2, size=(batch, 1)).astype(np.float32)
    return (categories, numbers), clicks
