"""Whole models learn the same with what is fused, on one device and on two."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_amp
from tests import onednn
from tests.tf_amp.training.fusions.test_fused_steps import assert_close, enabled

IMAGES = np.random.default_rng(0).normal(3.0, 2.0, (64, 8, 8, 4)).astype(np.float32)
IDS = np.random.default_rng(1).integers(-50, 50, (32, 6)).astype(np.int32)


def of_images() -> list[keras.layers.Layer]:
    return [
        layers.Conv2D(16, 3),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.Conv2D(16, 3),
        layers.BatchNormalization(),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1),
    ]


def of_numbers() -> list[keras.layers.Layer]:
    return [layers.Dense(64, "gelu"), layers.Dense(1)]


def of_words() -> list[keras.layers.Layer]:
    return [layers.Embedding(50, 8), layers.GlobalAveragePooling1D(), layers.Dense(1)]


MODELS = {
    # By oneDNN, the first is one with its activation by the time of the plan.
    "batch_statistics": (of_images, IMAGES, "sgd", 1 if onednn.IS_ON else 2, True),
    "gelu_gradients": (of_numbers, np.eye(32, dtype=np.float32), "sgd", 1, None),
    "row_reads": (of_words, IDS, "sgd", 1, True),
    # Adam changes every row, so that no copy is saved.
    "row_reads by Adam": (of_words, IDS, "adam", 1, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_the_same_and_their_plan_says_so(name: str) -> None:
    make, x, optimizer, count, gains = MODELS[name]
    rule = name.partition(" ")[0]
    y = np.ones((len(x), 1), np.float32)
    losses, weights = [], []
    for fuse in ("off", rule):
        with enabled(fuse=fuse):
            keras.utils.set_random_seed(0)
            model = keras.Sequential(make())
            model.compile(optimizer, "mse")
            fitted = model.fit(x, y, 8, epochs=2, verbose=0)
            losses.append(fitted.history["loss"])
            weights.append(model.get_weights())

            def step(x, y, model=model):
                return model.train_step((x, y))["loss"]

            plan = tf_amp.explain(tf.function(step), x[:8], y[:8])
            fusions = plan.traced_fusions
            assert [each.rule for each in fusions] == [rule] * count * (fuse != "off")
            if gains is not None:
                assert all((each.seconds > 0.0) == gains for each in fusions)
    np.testing.assert_allclose(*losses, rtol=1e-4)
    if rule != "batch_statistics":
        assert_close(*losses, 1e-6)
        assert_close(*weights, 1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_at_o0_a_step_is_traced_as_keras_writes_it(name: str) -> None:
    make, x, optimizer, *_ = MODELS[name]
    y = np.ones((len(x), 1), np.float32)

    def traced_ops() -> list[str]:
        keras.utils.set_random_seed(0)
        model = keras.Sequential(make())
        model.compile(optimizer, "mse")

        def step(x, y):
            return model.train_step((x, y))["loss"]

        graph = tf.function(step).get_concrete_function(x[:8], y[:8]).graph
        return [op.type for op in graph.get_operations()]

    off = traced_ops()
    with enabled(opt_level="O0"):
        assert traced_ops() == off
    with enabled():
        assert traced_ops() != off
