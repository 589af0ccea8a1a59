"""A BERT-like encoder: four post-norm layers of width 512 with a word head."""

import keras
import numpy as np
from keras import layers

_VOCABULARY = 8000
_LENGTH = 128
_WIDTH = 512
_HEADS = 8
_LAYERS = 4
_DROPOUT = 0.1


def _encoder_layer(hidden: keras.KerasTensor) -> keras.KerasTensor:
    """Return one layer of attention and feed-forward, each with its residual."""
    attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, dropout=_DROPOUT)
    attended = layers.Dropout(_DROPOUT)(attention(hidden, hidden))
    hidden = layers.LayerNormalization(epsilon=1e-12)(hidden + attended)
    wide = layers.Dense(4 * _WIDTH, activation="gelu")(hidden)
    narrow = layers.Dropout(_DROPOUT)(layers.Dense(_WIDTH)(wide))
    return layers.LayerNormalization(epsilon=1e-12)(hidden + narrow)


def build() -> keras.Model:
    """Return the network; its output is logits [batch, length, words] in float32."""
    words = keras.Input((_LENGTH,), dtype="int32")
    positions = np.arange(_LENGTH, dtype=np.int32)[None]
    hidden = layers.Embedding(_VOCABULARY, _WIDTH)(words)
    hidden = hidden + layers.Embedding(_LENGTH, _WIDTH)(keras.ops.array(positions))
    hidden = layers.Dropout(_DROPOUT)(layers.LayerNormalization(epsilon=1e-12)(hidden))
    for _ in range(_LAYERS):
        hidden = _encoder_layer(hidden)
    logits = layers.Dense(_VOCABULARY)(hidden)
    return keras.Model(words, layers.Activation("linear", dtype="float32")(logits))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return word numbers [batch, length] and those to be guessed, same shape."""
    words = rng.integers(_VOCABULARY, size=(2, batch, _LENGTH), dtype=np.int32)
    return words[0], words[1]
