"""Transformer layers over words: an encoder as BERT is, or a decoder as GPT-2 is.

There is no dropout: it draws other masks in 16 bits, and losses are compared.
"""

from collections.abc import Callable

import keras
import numpy as np
from keras import layers

Rows = keras.KerasTensor


class Positions(layers.Layer):
    """Adds a learned row to each place."""

    def build(self, shape: tuple[int, ...]) -> None:
        """Make the rows."""
        self.table = self.add_weight(shape=shape[1:], initializer="uniform")

    def call(self, rows: Rows) -> Rows:
        """Return the rows with those of their places added."""
        return rows + keras.ops.cast(self.table, rows.dtype)


def embedded(vocabulary: int, length: int, width: int) -> tuple[Rows, Rows]:
    """Return an input of words [batch, length], and a row of a width for each."""
    words = keras.Input((length,), dtype="int32")
    return words, Positions()(layers.Embedding(vocabulary, width)(words))


def layer(
    rows: Rows,
    heads: int,
    *,
    normalizes_first: bool,
    is_causal: bool = False,
    memory: Rows | None = None,
) -> Rows:
    """Return rows after attention, to ``memory`` too if it is given, and two products.

    Args:
      rows: [batch, length, width].
      heads: of attention.
      normalizes_first: before each part, as GPT-2 does, else behind it, as BERT.
      is_causal: whether a row attends to those before it only.
      memory: rows of another sequence.
    """
    width = rows.shape[-1]

    def with_residual(rows: Rows, part: Callable[[Rows], Rows]) -> Rows:
        norm = layers.LayerNormalization(epsilon=1e-5)
        return rows + part(norm(rows)) if normalizes_first else norm(rows + part(rows))

    def attend(rows: Rows) -> Rows:
        attention = layers.MultiHeadAttention(heads, width // heads)
        return attention(rows, rows, use_causal_mask=is_causal)

    def attend_to_memory(rows: Rows) -> Rows:
        return layers.MultiHeadAttention(heads, width // heads)(rows, memory)

    def transform(rows: Rows) -> Rows:
        return layers.Dense(width)(layers.Dense(4 * width, "gelu")(rows))

    rows = with_residual(rows, attend)
    if memory is not None:
        rows = with_residual(rows, attend_to_memory)
    return with_residual(rows, transform)


def logits_of(rows: Rows, vocabulary: int) -> Rows:
    """Return logits [batch, length, words] in float32."""
    logits = layers.Dense(vocabulary)(layers.LayerNormalization()(rows))
    return layers.Activation("linear", dtype="float32")(logits)


def build(
    *,
    vocabulary: int,
    length: int,
    width: int,
    heads: int,
    depth: int,
    is_decoder: bool = False,
) -> keras.Model:
    """Return the network; its output is logits [batch, length, words] in float32."""
    words, rows = embedded(vocabulary, length, width)
    for _ in range(depth):
        rows = layer(rows, heads, normalizes_first=is_decoder, is_causal=is_decoder)
    return keras.Model(words, logits_of(rows, vocabulary))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(
    rng: np.random.Generator, batch: int, *, vocabulary: int, length: int, **_: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return word numbers [batch, length] and those to be guessed, same shape."""
    words = rng.integers(vocabulary, size=(2, batch, length), dtype=np.int32)
    return words[0], words[1]
