"""Products are activated in rows if a Reshape lies before bias and activation."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.graph.view import Item
from tests.grappler_pass.fusions.rewriting import fusing
from tests.text_graph import text_from_graph

BEFORE = """
x = Placeholder
w = Placeholder
b = Placeholder
sizes = Const value=3 dtype=int32
half = Const value=0.5
product = MatMul(x, w)
axes = Reshape(product, sizes)
biased = BiasAdd(axes, b)
neg = Neg(biased)
root = Mul(half, neg)
erfc = Erfc(root)
gate = Mul(half, erfc)
act = Mul(biased, gate)
fetch = Identity(act)
"""
ROWS = (1024, 1024)
TENSOR = (8, 128, 1024)
BEHIND = ("axes", "biased", "neg", "root", "erfc", "gate", "act", "fetch", "other")
SHAPES = {
    "x": (1024, 256),
    "w": (256, 1024),
    "b": (1024,),
    "half": (),
    "product": ROWS,
    **dict.fromkeys(BEHIND, TENSOR),
}
fused = fusing(BEFORE, SHAPES, ("fetch",))


def test_the_reshape_goes_behind_the_activation() -> None:
    rewrite = fused()
    assert text_from_graph(rewrite.graph_def).splitlines()[5:] == [
        "product = MatMul(x, w) T=float32",
        "axes = Reshape(product/tf_amp_0_activation, sizes) T=float32",
        "biased = BiasAdd(product, b) T=float32",
        "neg = Neg(biased) T=float32",
        "root = Mul(half, neg) T=float32",
        "erfc = Erfc(root) T=float32",
        "gate = Mul(half, erfc) T=float32",
        "act = Identity(axes) T=float32",
        "fetch = Identity(act) T=float32",
        "product/tf_amp_0_activation = Mul(biased, gate) T=float32",
    ]
    (fusion,) = rewrite.plan.fusions
    assert (fusion.rule, fusion.node) == ("flat_activations", "product")
    assert fusion.seconds > 0.0
    assert "fused: flat_activations 1" in rewrite.plan.summary()


@pytest.mark.parametrize("op", ["Relu", "Relu6", "Elu", "LeakyRelu"])
def test_an_activation_of_one_operation_is_moved(op: str) -> None:
    lines = BEFORE.replace("act = Mul(biased, gate)", f"act = {op}(biased)")
    kept = (line for line in lines.splitlines() if not line.startswith(INNER))
    rewrite = fused("\n".join(kept))
    nodes = {node.name: node for node in rewrite.graph_def.node}
    assert nodes["product/tf_amp_0_activation"].op == op
    assert list(nodes["axes"].input) == ["product/tf_amp_0_activation", "sizes"]


INNER = ("neg", "root", "erfc", "gate")


@pytest.mark.parametrize(
    ("line", "fetched", "is_moved"),
    [
        ("other = Tanh(product)", "other", False),
        ("other = Tanh(axes)", "other", False),
        ("other = Tanh(biased)", "other", False),
        ("other = Tanh(gate)", "other", False),
        ("other = Tanh(x, ^erfc)", "other", False),
        ("other = Tanh(act)", "other", True),
        ("", "product", False),
        ("", "axes", False),
        ("", "biased", False),
        ("", "gate", False),
        ("", "act", False),
        ("other = VariableV2 dtype=float shape=[]", "fetch", False),
    ],
)
def test_what_is_read_elsewhere_or_belongs_to_the_caller_stays(
    line: str, fetched: str, is_moved: bool
) -> None:
    rewrite = fused(f"{BEFORE}\n{line}", Item(fetch=("fetch", fetched)))
    assert bool(rewrite.plan.fusions) == rewrite.changed == is_moved


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("MatMul(x, w)", "BatchMatMulV2(x, w)"),
        ("BiasAdd(axes, b)", "AddV2(axes, b)"),
        ("BiasAdd(axes, b)", "BiasAdd(axes, b) data_format=NCHW"),
        ("Neg(biased)", "Exp(biased)"),
        ("Neg(biased)", "Neg(biased, ^x)"),
        ("Mul(half, erfc)", "Mul(b, erfc)"),
        ("Mul(half, erfc)", "AddV2(half, erfc)"),
        ("Mul(half, neg)", "Mul(half, neg) @/GPU:0"),
    ],
)
def test_what_is_no_known_activation_of_rows_stays(old: str, new: str) -> None:
    assert old in BEFORE
    assert not fused(BEFORE.replace(old, new)).changed


@pytest.mark.parametrize(
    "given",
    [
        {"axes": (8, 64, 2048)},
        {"axes": None},
        {"axes": (8, 128, None)},
        {"product": None},
        {"half": None},
        {"fusions": ()},
        {"opt_level": "O0"},
        {"fuses": True},
    ],
    ids=str,
)
def test_where_channels_may_not_stay_last_nothing_is_moved(given: dict) -> None:
    assert not fused(**given).changed


def test_what_is_excluded_stays() -> None:
    item = Item(("fetch",), excluded=(("erfc", "erfc"),))
    assert not fused(item=item).changed


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

    wanted = outcomes()
    tf_amp.enable(device_profile="cpu-generic", tune="off", fuse="flat_activations")
    try:
        found = outcomes()
        plans = tf_amp.plans()
    finally:
        tf_amp.disable()
    assert len(plans[-1].fusions) == 1
    for before, after in zip(wanted, found, strict=True):
        np.testing.assert_allclose(after, before, atol=2e-6 * np.abs(before).max())
