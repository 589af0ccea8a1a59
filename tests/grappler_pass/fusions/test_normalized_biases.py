"""A bias in front of a normalization by its batch is added to the mean alone."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tf_amp
from grappler_pass.graph.view import Item
from tests.grappler_pass.fusions.rewriting import fusing
from tests.text_graph import text_from_graph

BEFORE = """
x = Placeholder
w = Placeholder
b = Placeholder
gamma = Placeholder
dy = Placeholder
conv = Conv2D(x, w) strides=[1,1,1,1] padding=SAME
biased = BiasAdd(conv, b)
norm = FusedBatchNormV3(biased, gamma, gamma, gamma, gamma)
moved = Mul(norm:1, gamma)
grad = FusedBatchNormGradV3(dy, biased, gamma, norm:3, norm:4, norm:5)
sums = BiasAddGrad(grad)
y = Identity(norm)
dx = Identity(grad)
db = Identity(sums)
mean = Identity(moved)
"""
FETCHED = ("y", "dx", "db", "mean")
IMAGES, CHANNELS = (16, 32, 32, 64), (64,)
SHAPES = {
    "w": (3, 3, 64, 64),
    **dict.fromkeys(("x", "dy", "conv", "biased", "y", "dx"), IMAGES),
    **dict.fromkeys(("b", "gamma", "moved", "sums", "db", "mean"), CHANNELS),
    "norm": IMAGES,
    "grad": IMAGES,
}
fused = fusing(BEFORE, SHAPES, FETCHED)


def test_the_mean_gets_what_is_not_added_before() -> None:
    rewrite = fused()
    assert text_from_graph(rewrite.graph_def).splitlines()[5:] == [
        "conv = Conv2D(x, w) T=float32",
        "biased = Identity(conv) T=float32",
        "norm = FusedBatchNormV3(biased, gamma, gamma, gamma, gamma) "
        "T=float32 U=float32",
        "moved = Mul(norm/tf_amp_0_mean, gamma) T=float32",
        "grad = FusedBatchNormGradV3(dy, biased, gamma, norm:3, norm:4, norm:5) "
        "T=float32 U=float32",
        "sums = Const(^grad) dtype=float32",
        "y = Identity(norm) T=float32",
        "dx = Identity(grad) T=float32",
        "db = Identity(sums) T=float32",
        "mean = Identity(moved) T=float32",
        "norm/tf_amp_0_mean = AddV2(norm:1, b) T=float32",
    ]
    (fusion,) = rewrite.plan.fusions
    assert (fusion.rule, fusion.node) == ("normalized_biases", "biased")
    assert fusion.seconds > 0.0


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


@pytest.mark.parametrize(
    ("line", "fetched", "is_done"),
    [
        ("other = Tanh(biased)", "other", False),
        ("other = Tanh(norm:3)", "other", False),
        ("other = FusedBatchNormV3(biased, b, b, b, b)", "other", False),
        (
            "other = FusedBatchNormGradV3(dy, biased, b, b, norm:4, norm:5)",
            "other",
            False,
        ),
        ("other = Tanh(conv)", "other", True),
        ("other = Tanh(norm:1)", "other", True),
        ("other = Tanh(x, ^biased)", "other", True),
        ("", "biased", False),
        ("", "norm", False),
        ("other = VariableV2 dtype=float shape=[]", "y", False),
    ],
)
def test_what_others_would_see_stays(line: str, fetched: str, is_done: bool) -> None:
    rewrite = fused(f"{BEFORE}\n{line}", Item(fetch=(*FETCHED, fetched)))
    assert bool(rewrite.plan.fusions) == rewrite.changed == is_done


def test_a_gradient_that_the_caller_reads_is_summed_up() -> None:
    rewrite = fused(item=Item(fetch=(*FETCHED, "sums")))
    nodes = {node.name: node for node in rewrite.graph_def.node}
    assert nodes["biased"].op == "Identity"
    assert nodes["sums"].op == "BiasAddGrad"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("BiasAdd(conv, b)", "AddV2(conv, b)"),
        ("BiasAdd(conv, b)", "BiasAdd(conv, b) data_format=NCHW"),
        ("BiasAdd(conv, b)", "BiasAdd(conv, b) @/device:GPU:0"),
        ("gamma, gamma)\nmoved", "gamma, gamma) is_training=false\nmoved"),
        ("gamma, gamma)\nmoved", "gamma, gamma) exponential_avg_factor=0.1\nmoved"),
    ],
)
def test_what_is_not_normalized_by_its_batch_stays(old: str, new: str) -> None:
    assert old in BEFORE
    assert not fused(BEFORE.replace(old, new)).changed


@pytest.mark.parametrize(
    "given",
    [{"b": None}, {"fusions": ()}, {"opt_level": "O0"}, {"fuses": True}],
    ids=str,
)
def test_nothing_is_done_unasked(given: dict) -> None:
    assert not fused(**given).changed


def test_what_is_excluded_stays() -> None:
    item = Item(FETCHED, excluded=(("biased", "biased"),))
    assert not fused(item=item).changed


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
