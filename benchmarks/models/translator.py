"""An encoder and a decoder of transformer layers, which translates sentences."""

import keras
import numpy as np

from benchmarks.models import language_model

loss = language_model.loss


def build(
    *, vocabulary: int, length: int, width: int, heads: int, depth: int
) -> keras.Model:
    """Return the network; its output is logits [batch, length, words] in float32.

    Encoder and decoder have ``depth`` layers each.
    """
    sources, memory = language_model.embedded(vocabulary, length, width)
    targets, rows = language_model.embedded(vocabulary, length, width)
    for _ in range(depth):
        memory = language_model.layer(memory, heads, normalizes_first=True)
    memory = keras.layers.LayerNormalization()(memory)
    for _ in range(depth):
        rows = language_model.layer(
            rows, heads, normalizes_first=True, is_causal=True, memory=memory
        )
    logits = language_model.logits_of(rows, vocabulary)
    return keras.Model([sources, targets], logits)


def sample(
    rng: np.random.Generator, batch: int, *, vocabulary: int, length: int, **_: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return word numbers of two languages, and those to be guessed.

    All are [batch, length].
    """
    words = rng.integers(vocabulary, size=(3, batch, length), dtype=np.int32)
    return (words[0], words[1]), words[2]
