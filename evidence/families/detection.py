"""A detector in the style of SSD finds handwritten digits in scenes made of them."""

from __future__ import annotations

import functools

import keras
import numpy as np

from benchmarks.detector_network import build, multibox_loss, quality
from benchmarks.detector_scenes import Scenes, make_scenes
from evidence.family import Family, Task, shuffled, supervised

_STEPS = 1500
_BATCH = 16
_SCENES, _HELD_OUT = 1000, 200


@functools.cache
def _held_out() -> Scenes:
    return make_scenes(_HELD_OUT, seed=999, held_out=True)


def _make(seed: int) -> Task:
    model = build()
    scenes = make_scenes(_SCENES, seed)
    arrays = (scenes.images, scenes.classes, scenes.offsets)
    batches = (
        (images, (classes, offsets))
        for images, classes, offsets in shuffled(arrays, _BATCH, seed)
    )

    def loss(wanted: tuple[np.ndarray, np.ndarray], answers: np.ndarray) -> object:
        # As small as in the global batch that was published.
        return multibox_loss(keras.ops.cast(answers, "float32"), *wanted)

    def found() -> float:
        answers = np.asarray(model(_held_out().images, training=False))
        return quality(answers.astype(np.float32), _held_out())

    slowing = keras.optimizers.schedules.CosineDecay(2e-3, _STEPS)
    optimizer = keras.optimizers.Adam(slowing, epsilon=1e-16)
    return Task(supervised(model, optimizer, loss, batches), found)


FAMILY = Family(
    name="detection",
    title="SSD detection",
    metric="mean of precision and recall",
    is_better_high=True,
    steps=_STEPS,
    make=_make,
    data="scenes made of scikit-learn's digits",
)
