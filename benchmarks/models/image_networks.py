"""Networks of `keras.applications` with random weights, on square images."""

from typing import Any

import keras
import numpy as np

_SIDE = 128
_CLASSES = 1000


def build(name: str, *, side: int = _SIDE, **options: Any) -> keras.Model:
    """Return the network; its output is logits [batch, classes] in float32."""
    inputs = keras.Input((side, side, 3))
    trunk = getattr(keras.applications, name)(
        weights=None, include_top=False, pooling="avg", input_tensor=inputs, **options
    )
    logits = keras.layers.Dense(_CLASSES)(trunk.output)
    return keras.Model(
        inputs, keras.layers.Activation("linear", dtype="float32")(logits)
    )


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def sample(
    rng: np.random.Generator, batch: int, *, side: int = _SIDE
) -> tuple[np.ndarray, np.ndarray]:
    """Return images [batch, side, side, 3] and class numbers [batch]."""
    images = rng.standard_normal((batch, side, side, 3), dtype=np.float32)
    return images, rng.integers(_CLASSES, size=batch)
