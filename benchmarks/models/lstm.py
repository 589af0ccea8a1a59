"""A language model of two LSTM layers of width 512."""

import keras
import numpy as np
from keras import layers

_VOCABULARY = 2000
_LENGTH = 35
_WIDTH = 512


def build() -> keras.Model:
    """Return the network; its output is logits [batch, length, words] in float32."""
    words = keras.Input((_LENGTH,), dtype="int32")
    hidden = layers.Embedding(_VOCABULARY, _WIDTH)(words)
    hidden = layers.LSTM(_WIDTH, return_sequences=True)(hidden)
    hidden = layers.LSTM(_WIDTH, return_sequences=True)(hidden)
    logits = layers.Dense(_VOCABULARY)(hidden)
    return keras.Model(words, layers.Activation("linear", dtype="float32")(logits))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return word numbers [batch, length] and the words that follow them."""
    words = rng.integers(_VOCABULARY, size=(batch, _LENGTH + 1), dtype=np.int32)
    return words[:, :-1], words[:, 1:]
