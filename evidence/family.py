"""What a family of models has to offer, so that every method trains it alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Task:
    """One training run, ready to begin.

    Attributes:
      step: trains on the next batch and returns the loss.
      metric: what the model is worth now, on data that it does not learn from.
    """

    step: Callable[[], tf.Tensor]
    metric: Callable[[], float]


@dataclasses.dataclass(frozen=True)
class Family:
    """A published experiment in the size that two cores train.

    Attributes:
      name: on the command line and in files.
      title: for people.
      metric: its name, for people.
      is_better_high: whether more of it is better.
      steps: of a whole training.
      make: returns a task for a seed, which decides weights and batches.
      data: where the data comes from, for people.
    """

    name: str
    title: str
    metric: str
    is_better_high: bool
    steps: int
    make: Callable[[int], Task]
    data: str


def supervised(
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    loss: Callable[[Any, Any], tf.Tensor],
    batches: Iterator[tuple[Any, Any]],
) -> Callable[[], tf.Tensor]:
    """Return the step of a custom loop.

    Args:
      model: to train.
      optimizer: of its variables.
      loss: of wanted and given outputs, a number or one per example.
      batches: inputs and wanted outputs.
    """
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=False, reduce_retracing=True)
    def step(inputs: Any, wanted: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(wanted, model(inputs, training=True)))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(value, variables), variables)
        return value

    return lambda: step(*tf.nest.map_structure(tf.constant, next(batches)))


def shuffled(
    arrays: Sequence[np.ndarray], size: int, seed: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield batches for ever, epoch by epoch in another order."""
    random = np.random.default_rng(seed)
    count = len(arrays[0])
    while True:
        order = random.permutation(count)
        for begin in range(0, count - size + 1, size):
            chosen = order[begin : begin + size]
            yield tuple(array[chosen] for array in arrays)
