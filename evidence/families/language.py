"""A recurrent network guesses the next letter of a program."""

from __future__ import annotations

import functools
import math

import keras
import numpy as np
from keras import layers

from evidence import data
from evidence.family import Family, Task, shuffled, supervised

_CHARACTERS, _LENGTH = 400_000, 64
_BATCH, _WIDTH = 32, 128
_STEPS = 250
_KINDS = 128


@functools.cache
def _passages() -> np.ndarray:
    """Return passages [n, length + 1] of letters, what is not ASCII being one."""
    text = data.source_text(_CHARACTERS).encode("ascii", errors="replace")
    letters = np.frombuffer(text, np.uint8).astype(np.int32)
    count = (len(letters) - 1) // _LENGTH
    return np.stack(
        [letters[i * _LENGTH : (i + 1) * _LENGTH + 1] for i in range(count)]
    )


def _network() -> keras.Model:
    letters = keras.Input((_LENGTH,), dtype="int32")
    hidden = layers.Embedding(_KINDS, 64)(letters)
    hidden = layers.LSTM(_WIDTH, return_sequences=True)(hidden)
    logits = layers.Dense(_KINDS)(hidden)
    return keras.Model(letters, layers.Activation("linear", dtype="float32")(logits))


def _make(seed: int) -> Task:
    model = _network()
    (learned,), (held_out,) = data.split(_passages())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batches = (
        (passages[:, :-1], passages[:, 1:])
        for (passages,) in shuffled([learned], _BATCH, seed)
    )

    def bits() -> float:
        logits = model.predict(held_out[:, :-1], batch_size=128, verbose=0)
        return float(loss(held_out[:, 1:], logits)) / math.log(2.0)

    slowing = keras.optimizers.schedules.CosineDecay(6e-3, _STEPS)
    optimizer = keras.optimizers.Adam(slowing, clipnorm=1.0)
    return Task(supervised(model, optimizer, loss, batches), bits)


FAMILY = Family(
    name="language",
    title="language model",
    metric="bits per letter",
    is_better_high=False,
    steps=_STEPS,
    make=_make,
    data="source text of Django",
)
