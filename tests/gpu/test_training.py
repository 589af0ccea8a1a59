"""Models train in 16 bits as they do in float32, compiled by XLA and not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_amp
from tests.gpu.device import ON_THE_DEVICE, needs_gpu
from tests.placing import GPUS, KIND
from tf_amp._tensorflow_private.functions import executed_graphs

pytestmark = ON_THE_DEVICE

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


LOW = {"bfloat16": tf.bfloat16.as_datatype_enum, "float16": tf.half.as_datatype_enum}
CASES = [
    # One process trains all that is held against one float32.
    pytest.param(
        make,
        is_compiled,
        marks=pytest.mark.xdist_group(f"{make.__name__} {is_compiled}"),
        id=f"{make.__name__}-{'compiled' if is_compiled else 'graph'}",
    )
    for make in (dense, convolutional, recurrent, attending)
    for is_compiled in (False, True)
]


@functools.cache
def float32_losses(make: Make, is_compiled: bool) -> np.ndarray:
    return losses_of(model_of(make, jit_compile=is_compiled))


def has_low() -> bool:
    """Return whether any plan so far has an op in 16 bits."""
    return any(row.is_low for plan in tf_amp.plans() for row in plan.decisions)


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(("make", "is_compiled"), CASES)
def test_models_train_as_in_float32(
    make: Make, is_compiled: bool, dtype: str, level: str
) -> None:
    expected = float32_losses(make, is_compiled)
    tf_amp.enable(dtype, opt_level=level, strict=True)
    losses = losses_of(model_of(make, jit_compile=is_compiled))
    assert_near(losses, expected)
    # By a GPU's prices those convolutions pay where nothing waits for the host.
    if level == "O2" or (GPUS and make is convolutional and is_compiled):
        assert has_low()


@pytest.mark.parametrize("dtype", LOW)
def test_what_is_in_16_bits_runs_on_the_device(dtype: str) -> None:
    tf_amp.enable(dtype, opt_level="O2", strict=True)
    model = model_of(dense, jit_compile=False)
    graphs = executed_graphs(lambda: model.train_on_batch(*batch(0)))
    products = [
        node
        for graph in graphs
        for node in graph.node
        if "MatMul" in node.op and node.attr["T"].type == LOW[dtype]
    ]
    # Three layers of three products each, and the two last ones.
    assert len(products) >= 8
    assert all(f"{KIND}:0" in node.device for node in products)


def test_fit_as_keras_does_it_by_default_is_planned_and_learns() -> None:
    # By prices where they are a GPU's, else 16 bits whatever they cost.
    level = "O1" if GPUS else "O2"
    histories = []
    for is_enabled in (False, True):
        if is_enabled:
            tf_amp.enable("bfloat16", opt_level=level, strict=True)
        model = model_of(convolutional)
        x, y = images()
        told = model.fit(x, y, batch_size=BATCH, epochs=8, shuffle=False, verbose=0)
        histories.append(np.array(told.history["loss"]))
        # Keras compiles by itself where there is a GPU.
        assert model.jit_compile == bool(GPUS)
    assert has_low()
    assert_near(histories[1], histories[0])


@pytest.mark.parametrize("is_compiled", [False, True], ids=["graph", "compiled"])
def test_overflows_are_skipped_and_halve_the_scale(is_compiled: bool) -> None:
    large = tf_amp.DynamicLossScale(initial=2.0**40, maximum=2.0**40)
    tf_amp.enable("float16", opt_level="O2", strict=True, loss_scale=large)
    model = model_of(convolutional, jit_compile=is_compiled)
    losses = losses_of(model)
    state = tf_amp.loss_scale_state()
    assert 0 < state.skipped_steps < STEPS
    assert state.scale == 2.0 ** (40 - state.skipped_steps)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_a_step_that_overflows_changes_no_weight() -> None:
    tf_amp.enable("float16", opt_level="O2", strict=True)
    model = model_of(dense, jit_compile=False)
    x, y = batch(0)
    model.train_on_batch(x, y)
    before = [w.numpy() for w in (*model.weights, *model.optimizer.variables)]
    model.train_on_batch(np.full_like(x, np.inf), y)
    after = [w.numpy() for w in (*model.weights, *model.optimizer.variables)]
    assert tf_amp.loss_scale_state().skipped_steps == 1
    assert all(map(np.array_equal, before, after))


@needs_gpu
def test_large_products_pay_with_the_devices_own_prices() -> None:
    a = tf.random.normal((4096, 4096))
    tf_amp.enable(strict=True)

    @tf.function
    def products(x: tf.Tensor) -> tf.Tensor:
        for _ in range(4):
            x = tf.tanh(x @ a / 64)
        return x

    products(a)
    (plan,) = tf_amp.plans()
    assert plan.predicted_speedup > 1.5


@pytest.mark.parametrize("kind", [keras.layers.LSTM, keras.layers.GRU])
def test_gradients_of_a_recurrence_are_those_of_float32(kind: type) -> None:
    # TensorFlow's own kernel of cuDNN has wrong ones in bfloat16.
    def gradients() -> np.ndarray:
        keras.utils.set_random_seed(1)
        layer, head = kind(64), keras.layers.Dense(64)
        x = tf.random.stateless_normal((32, 12, 64), [1, 2])

        @tf.function
        def step(x: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(head(layer(x)) ** 2)
            return tape.gradient(loss, layer.trainable_variables)

        head(layer(x))
        return np.concatenate([np.ravel(g) for g in step(x)])

    expected = gradients()
    tf_amp.enable("bfloat16", opt_level="O2", strict=True)
    found = gradients()
    assert has_low()
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < error < 0.05
