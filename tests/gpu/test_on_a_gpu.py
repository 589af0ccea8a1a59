"""What holds on CPUs holds on a GPU: ``make gpu`` runs this where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_amp
from tests.recipe_seeds import recipe_of
from tests.yardstick_check import PLANS, check
from tf_amp._tensorflow_private.functions import executed_graphs

GPUS = tf.config.list_physical_devices("GPU")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="no GPU is here")]

LOW = {"bfloat16": tf.bfloat16.as_datatype_enum, "float16": tf.half.as_datatype_enum}
STEPS, BATCH = 60, 64
# Of losses, relative: between training in float32 and in 16 bits.
NEAR = 0.1


@pytest.fixture(autouse=True)
def exact_float32(disabled_afterwards: None) -> Iterator[None]:
    """Compute float32 in float32, which many GPUs otherwise do with 10 bits."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


def images() -> tuple[np.ndarray, np.ndarray]:
    """Return digits, 8 x 8 pixels from 0 to 1, and which they are."""
    digits = load_digits()
    return (digits.images[..., None] / 16).astype(np.float32), digits.target


def dense() -> list[keras.Layer]:
    """Return layers of products."""
    wide = [keras.layers.Dense(1024, "gelu") for _ in range(3)]
    return [keras.layers.Flatten(), *wide]


def convolutional() -> list[keras.Layer]:
    """Return convolutions with normalizations between them."""
    return [
        keras.layers.Conv2D(128, 3, padding="same", use_bias=False),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Conv2D(128, 3, padding="same", activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
    ]


def recurrent() -> list[keras.Layer]:
    """Return a recurrence, which is one op of cuDNN."""
    return [keras.layers.Reshape((8, 8)), keras.layers.LSTM(512)]


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


MODELS = (dense, convolutional, recurrent, attending)
Make = Callable[[], list[keras.Layer]]


def model_of(make: Make, *, jit_compile: bool = False) -> keras.Model:
    """Return a compiled model of ten classes that begins alike each time."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((8, 8, 1)), *make(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=jit_compile)
    return model


def losses_of(model: keras.Model) -> np.ndarray:
    """Train some steps; return the loss of each."""
    x, y = images()
    losses = []
    for step in range(STEPS):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % len(x)
        model.reset_metrics()
        losses.append(float(model.train_on_batch(x[rows], y[rows])))
    return np.array(losses)


def assert_near(found: np.ndarray, float32: np.ndarray) -> None:
    """Hold the means of the first and of the last ten losses against float32's."""
    for part in (slice(10), slice(-10, None)):
        assert found[part].mean() == pytest.approx(float32[part].mean(), rel=NEAR)


@pytest.mark.parametrize("seed", range(60))
def test_no_error_passes_what_casts_by_hand_give(seed: int) -> None:
    outcome = check(recipe_of(seed), PLANS)
    assert not outcome.failures, list(outcome.failures.values())


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("make", MODELS)
def test_models_train_as_in_float32(make: Make, dtype: str) -> None:
    float32 = losses_of(model_of(make))
    tf_amp.enable(dtype, opt_level="O2", strict=True)
    model = model_of(make)
    x, y = images()
    graphs = executed_graphs(lambda: model.train_on_batch(x[:BATCH], y[:BATCH]))
    low = [
        node
        for graph in graphs
        for node in graph.node
        if node.op != "Cast"
        and "GPU" in node.device
        and any(attr.type == LOW[dtype] for attr in node.attr.values())
    ]
    assert low
    assert_near(losses_of(model_of(make)), float32)


@pytest.mark.parametrize("make", MODELS)
def test_compiled_models_train_as_in_float32(make: Make) -> None:
    float32 = losses_of(model_of(make, jit_compile=True))
    tf_amp.enable("float16", opt_level="O2", strict=True)
    assert_near(losses_of(model_of(make, jit_compile=True)), float32)


def test_overflows_are_skipped_and_halve_the_scale() -> None:
    large = tf_amp.DynamicLossScale(initial=2.0**40, maximum=2.0**40)
    tf_amp.enable("float16", opt_level="O2", strict=True, loss_scale=large)
    model = model_of(convolutional)
    losses = losses_of(model)
    state = tf_amp.loss_scale_state()
    assert 0 < state.skipped_steps < STEPS
    assert state.scale == 2.0 ** (40 - state.skipped_steps)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


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
