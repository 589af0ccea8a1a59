"""Keras `compile(jit_compile=True)` on real data, and loss scaling within XLA."""

from __future__ import annotations

import importlib
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf
from sklearn.datasets import load_digits

import tf_amp

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def digits() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return (data.data / 16).astype(np.float32), data.target


def compiled_model(keras: ModuleType):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=True,
    )
    return model


def accuracy(keras: ModuleType) -> float:
    x, y = digits()
    model = compiled_model(keras)
    model.fit(x[:1500], y[:1500], epochs=4, batch_size=64, verbose=0)
    logits = model(x[1500:]).numpy()
    return float((logits.argmax(-1) == y[1500:]).mean())


@pytest.mark.parametrize(
    ("library", "dtype", "in_float32"),
    [("keras", "float16", 0.892), ("tf_keras", "bfloat16", 0.909)],
)
def test_fit_reaches_the_accuracy_of_float32(
    library: str, dtype: str, in_float32: float
) -> None:
    keras = importlib.import_module(library)
    tf_amp.enable(dtype, "O2", strict=True)
    found = accuracy(keras)
    steps = [plan for plan in tf_amp.plans() if "under XLA" in plan.profile]
    products = max(
        sum(d.op == "MatMul" and d.is_low for d in step.decisions) for step in steps
    )
    assert products >= 5
    assert found > in_float32 - 0.03


def everything(model) -> list[np.ndarray]:
    return [v.numpy() for v in (*model.weights, *model.optimizer.variables)]


def test_a_step_that_overflows_changes_nothing_but_the_scale(
    keras: ModuleType,
) -> None:
    scale = tf_amp.DynamicLossScale(initial=2.0**10)
    tf_amp.enable("float16", opt_level="O2", strict=True, loss_scale=scale)
    x, y = digits()
    model = compiled_model(keras)
    model.train_on_batch(x[:8], y[:8])
    start = everything(model)
    model.train_on_batch(np.full_like(x[:8], 1e30), y[:8])
    state = tf_amp.loss_scale_state()
    assert (state.scale, state.skipped_steps) == (2.0**9, 1)
    skipped = everything(model)
    for before, after in zip(start, skipped, strict=True):
        np.testing.assert_array_equal(before, after)
    model.train_on_batch(x[:8], y[:8])
    assert tf_amp.loss_scale_state().good_steps == 1
    pairs = zip(skipped, everything(model), strict=True)
    assert any((before != after).any() for before, after in pairs)


def test_tiny_gradients_survive_float16_by_scaling() -> None:
    def gradient() -> float:
        w = tf.Variable([[1.0], [1.0]])

        @tf.function(jit_compile=True)
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                y = tf.ones((2, 2)) @ w
                loss = tf.reduce_sum(y) * 2.0**-30
            return tape.gradient(loss, w)

        return float(step()[0, 0])

    tf_amp.enable("float16", opt_level="O2", loss_scale="none")
    assert gradient() == 0.0
    tf_amp.enable("float16", opt_level="O2", loss_scale=2.0**15)
    assert gradient() == 2.0**-29
