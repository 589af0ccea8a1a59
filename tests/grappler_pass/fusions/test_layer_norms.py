"""A layer normalization of Keras 3 is one kernel where nothing else reads its parts."""

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
a = Placeholder
w = Placeholder
x = BatchMatMulV2(a, w)
gamma = Placeholder
beta = Placeholder
axis = Const value=2 dtype=int32
epsilon = Const value=0.001
mean = Mean(x, axis) keep_dims=true
diff = SquaredDifference(x, mean)
variance = Mean(diff, axis) keep_dims=true
sum = AddV2(epsilon, variance)
rsqrt = Rsqrt(sum)
scale = Mul(gamma, rsqrt)
neg = Neg(mean)
shifted = Mul(neg, scale)
scaled = Mul(x, scale)
inner = AddV2(beta, shifted)
outer = AddV2(inner, scaled)
fetch = Identity(outer)
"""
# As TensorFlow's arithmetic optimizer leaves it.
REORDERED = BEFORE.replace("inner = AddV2(beta, shifted)", "").replace(
    "outer = AddV2(inner, scaled)",
    "inner = AddN(shifted, scaled) N=2\nouter = AddV2(inner, beta)",
)
WHOLE = (8, 128, 512)
ROW = (8, 128, 1)
SHAPES = {
    "a": (8, 128, 64),
    "w": (64, 512),
    "x": WHOLE,
    "gamma": (512,),
    "beta": (512,),
    "axis": (),
    "epsilon": (),
    **dict.fromkeys(("mean", "variance", "sum", "rsqrt", "neg"), ROW),
    **dict.fromkeys(("diff", "scale", "shifted", "scaled"), WHOLE),
    **dict.fromkeys(("inner", "outer", "fetch", "other"), WHOLE),
}
INNER = [
    f"{name} = Identity(outer) T=float32"
    for name in "mean diff variance sum rsqrt scale neg shifted scaled inner".split()
]
fused = fusing(BEFORE, SHAPES, ("fetch",))


@pytest.mark.parametrize("text", [BEFORE, REORDERED])
def test_all_of_it_becomes_one_kernel(text: str) -> None:
    rewrite = fused(text)
    assert text_from_graph(rewrite.graph_def).splitlines()[7:] == [
        *INNER,
        "outer = _MklLayerNorm(x, gamma, beta) T=float32",
        "fetch = Identity(outer) T=float32",
    ]
    kernel = next(n for n in rewrite.graph_def.node if n.op == "_MklLayerNorm")
    assert kernel.attr["epsilon"].f == np.float32(0.001)
    (fusion,) = rewrite.plan.fusions
    assert (fusion.rule, fusion.node) == ("layer_norms", "outer")
    assert fusion.seconds > 0.0
    assert "fused: layer_norms 1" in rewrite.plan.summary()


def test_further_axes_are_folded_into_rows() -> None:
    sizes = {name: (None, 8, *shape[1:]) for name, shape in SHAPES.items() if shape[1:]}
    text = BEFORE.replace("value=2", "value=-1")
    rewrite = fused(text, gamma=(1, 1, 1, 512), **sizes)
    assert text_from_graph(rewrite.graph_def).splitlines()[-8:] == [
        "outer = Reshape(outer/tf_amp_4_normalized, outer/tf_amp_5_shape) T=float32",
        "fetch = Identity(outer) T=float32",
        "outer/tf_amp_0_shape = Const(^x)",
        "outer/tf_amp_1_values = Reshape(gamma, outer/tf_amp_0_shape) T=float32",
        "outer/tf_amp_2_shape = Const(^x)",
        "outer/tf_amp_3_rows = Reshape(x, outer/tf_amp_2_shape) T=float32",
        "outer/tf_amp_4_normalized = _MklLayerNorm(outer/tf_amp_3_rows, "
        "outer/tf_amp_1_values, beta) T=float32",
        "outer/tf_amp_5_shape = Const(^x)",
    ]


@pytest.mark.parametrize(
    ("line", "fetched", "is_fused"),
    [
        *(
            (f"other = Tanh({name})", "other", False)
            for name in SHAPES
            if name
            in "mean diff variance sum rsqrt scale neg shifted scaled inner".split()
        ),
        ("other = Tanh(x, ^neg)", "other", False),
        ("other = Tanh(outer)", "other", True),
        ("", "mean", False),
        ("", "inner", False),
        ("", "outer", False),
        ("other = VariableV2 dtype=float shape=[]", "fetch", False),
    ],
)
def test_what_is_read_elsewhere_or_belongs_to_the_caller_stays(
    line: str, fetched: str, is_fused: bool
) -> None:
    rewrite = fused(f"{BEFORE}\n{line}", Item(fetch=("fetch", fetched)))
    assert bool(rewrite.plan.fusions) == rewrite.changed == is_fused


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("keep_dims=true\ndiff", "keep_dims=false\ndiff"),
        ("axis = Const value=2", "axis = Const value=1"),
        ("axis = Const value=2", "axis = Const value=[1,2]"),
        ("axis = Const value=2 dtype=int32", "axis = Placeholder dtype=int32"),
        ("epsilon = Const value=0.001", "epsilon = Placeholder"),
        ("SquaredDifference(x, mean)", "SquaredDifference(x, beta)"),
        ("SquaredDifference(x, mean)", "SquaredDifference(beta, mean)"),
        ("mean = Mean(x, axis)", "mean = Mean(gamma, axis)"),
        ("Mul(neg, scale)", "Mul(neg, rsqrt)"),
        ("Mul(neg, scale)", "Mul(neg, scale) @/GPU:0"),
        ("Mul(x, scale)", "Mul(scale, scale)"),
        ("Mul(x, scale)", "Mul(beta, scale)"),
        ("Neg(mean)", "Neg(variance)"),
        ("AddV2(inner, scaled)", "Sub(inner, scaled)"),
        ("AddV2(inner, scaled)", "AddV2(inner, inner)"),
        ("AddV2(beta, shifted)", "AddV2(shifted, shifted)"),
    ],
)
def test_what_is_not_as_keras_writes_it_stays(old: str, new: str) -> None:
    assert old in BEFORE
    assert not fused(BEFORE.replace(old, new)).changed


@pytest.mark.parametrize(
    "given",
    [
        {"gamma": (8, 1, 512)},
        {"gamma": ()},
        {"beta": (8, 128, 512)},
        {"beta": None},
        {"x": None},
        {"x": (8, 128, None)},
        # Making the primitive takes longer than it saves.
        {"x": (2, 4, 512)},
        {"x": (2, 64, 512)},
        {"fusions": ()},
        {"opt_level": "O0"},
        {"fuses": True},
    ],
    ids=str,
)
def test_what_is_not_per_channel_or_does_not_pay_stays(given: dict) -> None:
    assert not fused(**given).changed


def test_what_is_excluded_stays() -> None:
    assert not fused(item=Item(("fetch",), excluded=(("rsqrt", "rsqrt"),))).changed


def _model(shape: tuple[int, ...], given: list[dict]) -> keras.Model:
    keras.utils.set_random_seed(1)
    drawn = {"gamma_initializer": "normal", "beta_initializer": "normal"}
    model = keras.Sequential(
        [
            keras.Input(shape),
            *(keras.layers.LayerNormalization(**drawn, **each) for each in given),
            keras.layers.Dense(4),
        ]
    )
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("shape", "given", "count"),
    [
        ((4096,), [{}], 1),
        ((64, 256), [{"epsilon": 1e-12}], 1),
        ((8, 8, 256), [{}], 1),
        ((8, 8, 256), [{"axis": (2, 3)}, {"center": False}, {"scale": False}], 0),
    ],
)
def test_keras_predicts_the_same_and_trains_as_before(
    shape: tuple[int, ...], given: list[dict], count: int
) -> None:
    data = np.random.default_rng(0).normal(1.0, size=(64, *shape)).astype(np.float32)
    target = np.zeros((64, *shape[:-1], 4), np.float32)

    def outcomes() -> list[np.ndarray]:
        model = _model(shape, given)
        model.fit(data, target, batch_size=64, verbose=0, shuffle=False)
        return [
            *(
                model.predict(part, batch_size=64, verbose=0)
                for part in (data, data[:3])
            ),
            *model.get_weights(),
        ]

    wanted = outcomes()
    tf_amp.enable(device_profile="cpu-generic", tune="off", fuse="layer_norms")
    try:
        found = outcomes()
        plans = tf_amp.plans()
    finally:
        tf_amp.disable()
    assert sum(len(plan.fusions) for plan in plans) >= count
    assert bool(count) == any(plan.fusions for plan in plans)
    for before, after in zip(wanted, found, strict=True):
        np.testing.assert_allclose(after, before, atol=5e-6 * np.abs(before).max())


@pytest.mark.skipif(
    not hasattr(keras.layers, "RMSNormalization"), reason="Keras has none"
)
def test_normalizing_without_a_mean_is_left_as_it_is() -> None:
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((64, 256)), layers.RMSNormalization(), layers.Dense(4)]
    )
    data = np.random.default_rng(0).normal(1.0, size=(64, 64, 256)).astype(np.float32)
    wanted = model.predict(data, batch_size=64, verbose=0)
    model.predict_function = None
    tf_amp.enable(device_profile="cpu-generic", tune="off")
    try:
        found = model.predict(data, batch_size=64, verbose=0)
        plan = tf_amp.explain(tf.function(lambda x: model(x)), data)
    finally:
        tf_amp.disable()
    assert "layer_norms" not in {each.rule for each in plan.all_fusions}
    np.testing.assert_array_equal(found, wanted)


def test_no_rows_and_values_that_are_no_numbers_come_out_as_before() -> None:
    layers = keras.layers
    layer = keras.Sequential([layers.LayerNormalization(), layers.Dense(2)])
    layer.build((None, 4096))
    rows = np.ones((256, 4096), np.float32)
    rows[0, 0], rows[1, 0] = np.nan, np.inf

    def outcomes() -> list[np.ndarray]:
        call = tf.function(
            lambda x: layer(x), input_signature=[tf.TensorSpec((None, 4096))]
        )
        return [call(tf.constant(part)).numpy() for part in (rows, rows[:0])]

    wanted = outcomes()
    tf_amp.enable(device_profile="cpu-generic", tune="off", fuse="layer_norms")
    try:
        found = outcomes()
        assert any(plan.fusions for plan in tf_amp.plans())
    finally:
        tf_amp.disable()
    for before, after in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(after, before)
