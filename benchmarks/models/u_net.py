"""A U-Net: which of two kinds each pixel of 128 x 128 images is of."""

import keras
import numpy as np

_SIDE = 128
_WIDTHS = (32, 64, 128, 256)


def _block(hidden: keras.KerasTensor, width: int) -> keras.KerasTensor:
    for _ in range(2):
        hidden = keras.layers.Conv2D(width, 3, padding="same", use_bias=False)(hidden)
        hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.ReLU()(hidden)
    return hidden


def build() -> keras.Model:
    """Return the network; its output is logits [batch, side, side, 1]."""
    inputs = keras.Input((_SIDE, _SIDE, 3))
    hidden, skipped = inputs, []
    for width in _WIDTHS[:-1]:
        hidden = _block(hidden, width)
        skipped.append(hidden)
        hidden = keras.layers.MaxPooling2D()(hidden)
    hidden = _block(hidden, _WIDTHS[-1])
    for width, beside in zip(_WIDTHS[-2::-1], skipped[::-1], strict=True):
        hidden = keras.layers.Conv2DTranspose(width, 2, strides=2)(hidden)
        hidden = _block(keras.layers.Concatenate()([hidden, beside]), width)
    return keras.Model(inputs, keras.layers.Conv2D(1, 1)(hidden))


def loss() -> keras.losses.Loss:
    """Return the loss of training."""
    return keras.losses.BinaryCrossentropy(from_logits=True)


def sample(rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [batch, side, side, 3] and kinds [batch, side, side, 1]."""
    images = rng.standard_normal((batch, _SIDE, _SIDE, 3), dtype=np.float32)
    kinds = rng.integers(2, size=(batch, _SIDE, _SIDE, 1))
    return images, kinds.astype(np.float32)
