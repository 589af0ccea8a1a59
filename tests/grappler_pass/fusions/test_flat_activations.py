"""Products are activated in rows if a Reshape lies before bias and activation."""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.grappler_pass.fusions.rewriting import CASES, plans_without_loss

fused = CASES["flat_activations"]
BEFORE = fused.text


@pytest.mark.parametrize("op", ["Relu", "Relu6", "Elu", "LeakyRelu"])
def test_an_activation_of_one_operation_is_moved(op: str) -> None:
    lines = BEFORE.replace("act = Mul(biased, gate)", f"act = {op}(biased)")
    kept = (line for line in lines.splitlines() if not line.startswith(INNER))
    rewrite = fused("\n".join(kept))
    nodes = {node.name: node for node in rewrite.graph_def.node}
    assert nodes["product/tf_amp_0_activation"].op == op
    assert list(nodes["axes"].input) == ["product/tf_amp_0_activation", "sizes"]


INNER = ("neg", "root", "erfc", "gate")


def _model(activation: object) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((16, 8, 32)),
            keras.layers.Dense(512, activation=activation, bias_initializer="normal"),
            keras.layers.Dense(4),
        ]
    )
    model.compile("sgd", "mse")
    return model


def _tanh_gelu(x: tf.Tensor) -> tf.Tensor:
    return keras.activations.gelu(x, approximate=True)


@pytest.mark.parametrize("activation", ["relu", "gelu", _tanh_gelu])
def test_keras_predicts_the_same_and_trains_as_before(activation: object) -> None:
    data = np.random.default_rng(0).normal(size=(64, 16, 8, 32)).astype(np.float32)
    target = np.zeros((64, 16, 8, 4), np.float32)

    def outcomes() -> list[np.ndarray]:
        model = _model(activation)
        model.fit(data, target, epochs=1, verbose=0, shuffle=False)
        return [model.predict(data, verbose=0), *model.get_weights()]

    plans = plans_without_loss(outcomes, 2e-6, fuse="flat_activations")
    assert len(plans[-1].fusions) == 1


def test_a_gelu_and_the_normalizations_around_it_are_all_fused() -> None:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((128, 512)),
            layers.LayerNormalization(),
            layers.Dense(512, "gelu"),
            layers.LayerNormalization(),
            layers.Dense(4),
        ]
    )
    data = np.random.default_rng(0).normal(size=(16, 128, 512)).astype(np.float32)

    def outcomes() -> list[np.ndarray]:
        model.predict_function = None
        return [model.predict(data, verbose=0)]

    (*_, plan) = plans_without_loss(outcomes, 1e-5)
    counts = collections.Counter(fusion.rule for fusion in plan.fusions)
    assert counts == {"flat_activations": 1, "layer_norms": 2}
