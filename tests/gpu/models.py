"""Small models of each kind, the digits they learn, and what they come to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

from tests.placing import GPUS

STEPS = 50
# Convolutions of a size that pays on a GPU, and what takes a CPU little time.
BATCH, WIDE, CHANNELS = (1024, 2048, 256) if GPUS else (256, 64, 8)
# Of losses, relative: between training in float32 and in 16 bits.
NEAR = 0.1

Make = Callable[[], list[keras.Layer]]


@functools.cache
def images() -> tuple[np.ndarray, np.ndarray]:
    """Return digits, 8 x 8 pixels from 0 to 1, and which they are."""
    digits = load_digits()
    return (digits.images[..., None] / 16).astype(np.float32), digits.target


def batch(step: int, size: int = BATCH) -> tuple[np.ndarray, np.ndarray]:
    """Return the images of a step, and which they are."""
    x, y = images()
    rows = np.arange(step * size, (step + 1) * size) % len(x)
    return x[rows], y[rows]


def dense() -> list[keras.Layer]:
    """Return layers of products."""
    wide = [keras.layers.Dense(WIDE, "gelu") for _ in range(3)]
    return [keras.layers.Flatten(), *wide]


def convolutional() -> list[keras.Layer]:
    """Return convolutions with normalizations between them."""
    return [
        keras.layers.Conv2D(CHANNELS, 3, padding="same", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Conv2D(CHANNELS, 3, padding="same", activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
    ]


def recurrent() -> list[keras.Layer]:
    """Return a recurrence, which is one op of cuDNN on a GPU."""
    return [keras.layers.Reshape((8, 8)), keras.layers.LSTM(WIDE // 4)]


class Attention(keras.layers.Layer):
    """Self-attention of rows, normalized, with what goes by it."""

    def __init__(self) -> None:
        """Make its layers."""
        super().__init__()
        self.embed = keras.layers.Dense(256)
        self.attend = keras.layers.MultiHeadAttention(4, 64)
        self.norm = keras.layers.LayerNormalization()

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Return one row of 256 for each row."""
        x = self.embed(x)
        return self.norm(x + self.attend(x, x))


def attending() -> list[keras.Layer]:
    """Return a layer of attention."""
    return [keras.layers.Reshape((8, 8)), Attention(), keras.layers.Flatten()]


def model_of(make: Make, **options: Any) -> keras.Model:
    """Return a compiled model of ten classes that begins alike each time."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8, 8, 1)), *make(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-4), loss, **options)
    return model


def losses_of(model: keras.Model) -> np.ndarray:
    """Train some steps; return the loss of each."""
    losses = []
    for step in range(STEPS):
        model.reset_metrics()
        losses.append(float(model.train_on_batch(*batch(step))))
    return np.array(losses)


def assert_near(found: np.ndarray, float32: np.ndarray) -> None:
    """Hold the means of the first and of the last ten losses against float32's."""
    for part in (slice(10), slice(-10, None)):
        assert found[part].mean() == pytest.approx(float32[part].mean(), rel=NEAR)
