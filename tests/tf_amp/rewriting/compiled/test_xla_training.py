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


def everything(model) -> list[np.ndarray]:
    return [v.numpy() for v in (*model.weights, *model.optimizer.variables)]


@pytest.mark.parametrize(
    ("library", "dtype", "in_float32", "too_large"),
    [("keras", "float16", 0.906, 1e30), ("tf_keras", "bfloat16", 0.875, np.inf)],
)
def test_fit_reaches_the_accuracy_of_float32_and_skips_what_overflows(
    library: str, dtype: str, in_float32: float, too_large: float
) -> None:
    keras = importlib.import_module(library)
    scale = tf_amp.DynamicLossScale(initial=2.0**10)
    tf_amp.enable(dtype, opt_level="O2", strict=True, loss_scale=scale)
    x, y = digits()
    model = compiled_model(keras)
    # Whole batches: each shape is compiled by itself.
    model.fit(x[:1472], y[:1472], epochs=4, batch_size=64, verbose=0)
    logits = model(x[1500:]).numpy()
    found = float((logits.argmax(-1) == y[1500:]).mean())
    steps = [plan for plan in tf_amp.plans() if "under XLA" in plan.profile]
    products = max(
        sum(d.op == "MatMul" and d.is_low for d in step.decisions) for step in steps
    )
    assert products >= 5
    assert found > in_float32 - 0.03

    start = everything(model)
    model.train_on_batch(np.full_like(x[:64], too_large), y[:64])
    state = tf_amp.loss_scale_state()
    assert (state.scale, state.skipped_steps) == (2.0**9, 1)
    skipped = everything(model)
    for before, after in zip(start, skipped, strict=True):
        np.testing.assert_array_equal(before, after)
    model.train_on_batch(x[:64], y[:64])
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
