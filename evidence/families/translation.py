"""A transformer translates the messages of a web framework, letter by letter."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from evidence import data
from evidence.family import Family, Task, shuffled, supervised

_LANGUAGES = ("de", "es", "fr", "it", "nl")
_LENGTH = 48
_BATCH, _WIDTH, _HEADS, _LAYERS = 32, 64, 4, 1
_STEPS, _WARM_UP = 300, 30
# 0 fills up; 1 begins and ends a message; then languages, then letters.
_EDGE = 1
_LETTERS = _EDGE + 1 + len(_LANGUAGES)


@functools.cache
def messages() -> tuple[np.ndarray, np.ndarray, int]:
    """Return letters of English messages and of translations, and how many kinds."""
    found = [
        (_LANGUAGES.index(language), english, other)
        for language, english, other in data.translations(_LANGUAGES)
        if max(len(english), len(other)) < _LENGTH - 1
    ]
    alphabet = sorted({letter for _, *pair in found for letter in "".join(pair)})
    number = {letter: _LETTERS + i for i, letter in enumerate(alphabet)}
    sources, targets = (np.zeros((len(found), _LENGTH), np.int32) for _ in range(2))
    for row, (language, english, other) in enumerate(found):
        letters = [_EDGE + 1 + language, *(number[c] for c in english)]
        sources[row, : len(letters)] = letters
        letters = [_EDGE, *(number[c] for c in other), _EDGE]
        targets[row, : len(letters)] = letters[:_LENGTH]
    return sources, targets, _LETTERS + len(alphabet)


def _embedded(words: keras.KerasTensor, kinds: int, width: int) -> keras.KerasTensor:
    places = layers.Embedding(_LENGTH, width)(ops.arange(words.shape[1])[None])
    return layers.Embedding(kinds, width)(words) + places


def _block(
    hidden: keras.KerasTensor, source: keras.KerasTensor | None
) -> keras.KerasTensor:
    """Return one layer; a decoder's, if it also looks at a source."""
    width = hidden.shape[-1]
    size = width // _HEADS
    attended = layers.MultiHeadAttention(_HEADS, size)(
        hidden, hidden, use_causal_mask=source is not None
    )
    hidden = layers.LayerNormalization()(hidden + attended)
    if source is not None:
        attended = layers.MultiHeadAttention(_HEADS, size)(hidden, source)
        hidden = layers.LayerNormalization()(hidden + attended)
    wide = layers.Dense(4 * width, "gelu")(hidden)
    narrow = layers.Dropout(0.1)(layers.Dense(width)(wide))
    return layers.LayerNormalization()(hidden + narrow)


def network(kinds: int, width: int = _WIDTH, depth: int = _LAYERS) -> keras.Model:
    """Return a transformer that reads a message and what is written of another."""
    source, target = (keras.Input((n,), dtype="int32") for n in (_LENGTH, _LENGTH - 1))
    hidden = _embedded(source, kinds, width)
    for _ in range(depth):
        hidden = _block(hidden, None)
    written = _embedded(target, kinds, width)
    for _ in range(depth):
        written = _block(written, hidden)
    logits = layers.Activation("linear", dtype="float32")(layers.Dense(kinds)(written))
    return keras.Model([source, target], logits)


def _loss(wanted: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(wanted, logits)
    counts = tf.cast(wanted > 0, tf.float32)
    return tf.reduce_sum(losses * counts) / tf.reduce_sum(counts)


def _make(seed: int) -> Task:
    sources, targets, kinds = messages()
    model = network(kinds)
    learned, held_out = data.split(sources, targets)
    batches = (
        ((source, target[:, :-1]), target[:, 1:])
        for source, target in shuffled(learned, _BATCH, seed)
    )

    def accuracy() -> float:
        source, target = held_out
        logits = model.predict((source, target[:, :-1]), verbose=0)
        wanted = target[:, 1:]
        return float(np.mean(logits.argmax(-1)[wanted > 0] == wanted[wanted > 0]))

    warmed = keras.optimizers.schedules.CosineDecay(
        0.0, _STEPS - _WARM_UP, 0.05, warmup_target=3e-3, warmup_steps=_WARM_UP
    )
    return Task(
        supervised(model, keras.optimizers.Adam(warmed), _loss, batches), accuracy
    )


FAMILY = Family(
    name="translation",
    title="neural translation",
    metric="letters guessed right",
    is_better_high=True,
    steps=_STEPS,
    make=_make,
    data="Django's messages in English and five languages",
)
