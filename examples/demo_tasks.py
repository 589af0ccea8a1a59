"""The two models that ``demo.py`` trains, with their data: both ship in packages.

- a small residual convolutional network on scikit-learn's handwritten digits
  (1,797 images, enlarged from 8x8 to 32x32; BSD license);
- a small causal transformer that predicts the next character of NumPy's own
  documentation (its docstrings, 0.9 million characters; BSD license).

Plain Keras 3 and TensorFlow: nothing here knows about mixed precision.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

layers = keras.layers
Batch = tuple[tf.Tensor, tf.Tensor]

DIGITS_BATCH = 32
DIGITS_SIZE = 32
TEXT_BATCH = 8
TEXT_LENGTH = 128
TEXT_UNITS = 256


@dataclass(frozen=True)
class Task:
    """A model to build, batches to train it on, and data held back to judge it.

    Attributes:
        name: what the table calls it.
        build: makes the untrained model.
        batches: yields the same batches [inputs, labels] whenever called.
        batch_size: examples per batch; ``held_back`` holds whole batches.
        steps: how many batches to train on.
        rate: the highest learning rate: reached after a twentieth of the steps, then
            decaying to zero by a cosine.
        held_back: inputs and labels never trained on.
    """

    name: str
    build: Callable[[], keras.Model]
    batches: Callable[[], Iterator[Batch]]
    batch_size: int
    steps: int
    rate: float
    held_back: tuple[tf.Tensor, tf.Tensor]


def build_residual_network() -> keras.Model:
    """Return a residual network of three blocks for images [batch, 32, 32, 1]."""
    inputs = keras.Input((DIGITS_SIZE, DIGITS_SIZE, 1))
    x = layers.Conv2D(48, 3, padding="same", activation="relu")(inputs)
    for channels in (48, 96, 192):
        stride = 1 if channels == 48 else 2
        short = x if stride == 1 else layers.Conv2D(channels, 1, stride)(x)
        x = layers.Conv2D(channels, 3, stride, padding="same", activation="relu")(x)
        x = layers.Conv2D(channels, 3, padding="same")(x)
        x = layers.ReLU()(layers.Add()([short, x]))
    x = layers.Flatten()(layers.AveragePooling2D(4)(x))
    return keras.Model(inputs, layers.Dense(10)(x))


def digits_task(steps: int) -> Task:
    """Return the classification of handwritten digits."""
    digits = load_digits()
    images = tf.image.resize(digits.images[..., None] / 16.0, (DIGITS_SIZE,) * 2)
    train_x, test_x, train_y, test_y = train_test_split(
        images.numpy(),
        digits.target.astype("int32"),
        test_size=14 * DIGITS_BATCH,
        random_state=0,
    )

    def batches() -> Iterator[Batch]:
        generator = np.random.default_rng(1)
        while True:
            rows = generator.choice(len(train_x), DIGITS_BATCH, replace=False)
            yield tf.constant(train_x[rows]), tf.constant(train_y[rows])

    return Task(
        name="digits, ResNet",
        build=build_residual_network,
        batches=batches,
        batch_size=DIGITS_BATCH,
        steps=steps,
        rate=2e-3,
        held_back=(tf.constant(test_x), tf.constant(test_y)),
    )


def numpy_text() -> str:
    """Return the docstrings of NumPy's public functions and classes, each once."""
    found = (inspect.getdoc(getattr(np, name)) for name in sorted(dir(np)))
    return "\n\n".join(dict.fromkeys(text for text in found if text))


def build_transformer(characters: int) -> keras.Model:
    """Return a causal transformer of two blocks for ids [batch, TEXT_LENGTH].

    The causal convolution tells each place of its eight predecessors; with it a few
    hundred steps suffice to learn more than pairs of characters.
    """
    inputs = keras.Input((TEXT_LENGTH,), dtype="int32")
    x = layers.Embedding(characters, TEXT_UNITS)(inputs)
    x = x + layers.Conv1D(TEXT_UNITS, 8, padding="causal")(x)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(4, TEXT_UNITS // 4)(y, y, use_causal_mask=True)
        x = x + y
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * TEXT_UNITS, activation="relu")(y)
        x = x + layers.Dense(TEXT_UNITS)(y)
    return keras.Model(inputs, layers.Dense(characters)(layers.LayerNormalization()(x)))


def text_task(steps: int) -> Task:
    """Return the prediction of the next character of NumPy's documentation."""
    alphabet, ids = np.unique(list(numpy_text()), return_inverse=True)
    ids = ids.astype("int32")
    train, test = np.split(ids, [int(0.9 * len(ids))])
    window = np.arange(TEXT_LENGTH + 1)

    def batches() -> Iterator[Batch]:
        generator = np.random.default_rng(1)
        while True:
            starts = generator.integers(len(train) - TEXT_LENGTH, size=TEXT_BATCH)
            rows = train[starts[:, None] + window]
            yield tf.constant(rows[:, :-1]), tf.constant(rows[:, 1:])

    starts = np.linspace(0, len(test) - len(window), 16 * TEXT_BATCH).astype(int)
    rows = test[starts[:, None] + window]
    return Task(
        name="text, transformer",
        build=lambda: build_transformer(len(alphabet)),
        batches=batches,
        batch_size=TEXT_BATCH,
        steps=steps,
        rate=2e-3,
        held_back=(tf.constant(rows[:, :-1]), tf.constant(rows[:, 1:])),
    )
