"""A bias in front of a normalization by its batch is added to the mean alone."""

from __future__ import annotations

import keras
import numpy as np

import tf_amp
from grappler_pass.graph.view import Item
from tests.grappler_pass.fusions.rewriting import CASES

fused = CASES["normalized_biases"]
BEFORE, FETCHED = fused.text, fused.fetch


def test_a_bias_that_is_fused_behind_its_product_goes_too() -> None:
    lines = BEFORE.replace("biased = BiasAdd(conv, b)\n", "")
    kernel = "_FusedConv2D(x, w, b) fused_ops=[BiasAdd] num_args=1 TArgs=[float]"
    text = lines.replace("conv = Conv2D(x, w)", f"biased = {kernel}")
    flat = fused(text, b=(1, 1, 1, 64))
    nodes = {node.name: node for node in flat.graph_def.node}
    assert nodes["biased"].op == "Conv2D"
    assert list(nodes["biased"].input) == ["x", "w"]
    assert nodes["biased"].attr["padding"].s == b"SAME"
    # With the other dimensions it would not be added to a vector.
    assert nodes["norm/tf_amp_1_values"].op == "Reshape"


def test_a_gradient_that_the_caller_reads_is_summed_up() -> None:
    rewrite = fused(item=Item(fetch=(*FETCHED, "sums")))
    nodes = {node.name: node for node in rewrite.graph_def.node}
    assert nodes["biased"].op == "Identity"
    assert nodes["sums"].op == "BiasAddGrad"


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(32, 3, bias_initializer=keras.initializers.Constant(3.0)),
            layers.BatchNormalization(momentum=0.5),
            layers.Activation("relu"),
            layers.Conv2D(32, 3, bias_initializer="normal"),
            layers.BatchNormalization(momentum=0.5),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def _trained(**settings: object) -> tuple[keras.Model, np.ndarray, object]:
    numbers = np.random.default_rng(0)
    data = numbers.normal(size=(64, 16, 16, 3)).astype(np.float32)
    target = numbers.normal(size=(64, 4)).astype(np.float32)
    if settings:
        tf_amp.enable(tune="off", **settings)
    try:
        model = _model()
        model.fit(data, target, batch_size=16, epochs=2, verbose=0, shuffle=False)
        plans = tf_amp.plans() if settings else []
    finally:
        tf_amp.disable()
    model.predict_function = None
    return model, model.predict(data, verbose=0), plans


def test_keras_trains_as_before() -> None:
    before, wanted, _ = _trained()
    after, found, plans = _trained(
        device_profile="cpu-generic", fuse="batch_statistics,normalized_biases"
    )
    rules = [each.rule for plan in plans for each in plan.fusions]
    assert rules.count("normalized_biases") == 2
    # Up to 5e-5 by oneDNN's kernels; up to 2e-4 by Eigen's.
    for one, other in zip(before.weights, after.weights, strict=True):
        tolerance = 3e-4 * max(1.0, float(np.abs(one.numpy()).max()))
        np.testing.assert_allclose(other.numpy(), one.numpy(), atol=tolerance)
    np.testing.assert_allclose(found, wanted, atol=3e-4 * np.abs(wanted).max())


def test_the_normalization_can_then_be_in_16_bits() -> None:
    def low_norms(fuse: str) -> list[str]:
        _, _, plans = _trained(
            device_profile="cpu-avx512-bf16", opt_level="O2", fuse=fuse
        )
        return [
            row.op
            for plan in plans
            for row in plan.decisions
            if row.is_low and "BatchNorm" in row.op and "Grad" not in row.op
        ]

    assert not low_norms("batch_statistics")
    assert low_norms("batch_statistics,normalized_biases")
