"""A language model of two LSTM layers, of width 512 by default."""

import keras
import numpy as np
from keras import layers

VOCABULARY = 2000
LENGTH = 35
WIDTH = 512


def build(
    *, vocabulary: int = VOCABULARY, length: int = LENGTH, width: int = WIDTH
) -> keras.Model:
    """Return the network; its output is logits [batch, length, words] in float32."""
    words = keras.Input((length,), dtype="int32")
    hidden = layers.Embedding(vocabulary, width)(words)
    hidden = layers.LSTM(width, return_sequences=True)(hidden)
    hidden = layers.LSTM(width, return_sequences=True)(hidden)
    logits = layers.Dense(vocabulary)(hidden)
    return keras.Model(words, layers.Activation("linear", dtype="float32")(logits))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(
    rng: np.random.Generator,
    batch: int,
    *,
    vocabulary: int = VOCABULARY,
    length: int = LENGTH,
    **_: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return word numbers [batch, length] and the words that follow them."""
    words = rng.integers(vocabulary, size=(batch, length + 1), dtype=np.int32)
    return words[:, :-1], words[:, 1:]
