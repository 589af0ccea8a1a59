"""A layer normalization of Keras 3 is one kernel where nothing else reads its parts."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.grappler_pass.fusions.rewriting import CASES, plans_without_loss
from tests.text_graph import graph_from_text, text_from_graph

fused = CASES["layer_norms"]
BEFORE = fused.text
# As TensorFlow's arithmetic optimizer leaves it.
REORDERED = BEFORE.replace("inner = AddV2(beta, shifted)", "").replace(
    "outer = AddV2(inner, scaled)",
    "inner = AddN(shifted, scaled) N=2\nouter = AddV2(inner, beta)",
)


def test_terms_are_summed_up_in_any_order() -> None:
    rewrite = fused(REORDERED)
    before = text_from_graph(graph_from_text(REORDERED)).splitlines()
    after = text_from_graph(rewrite.graph_def).splitlines()
    assert tuple(line for line in after if line not in before) == fused.changed
    kernel = next(n for n in rewrite.graph_def.node if n.op == "_MklLayerNorm")
    assert kernel.attr["epsilon"].f == np.float32(0.001)


def test_further_axes_are_folded_into_rows() -> None:
    sizes = {
        name: (None, 8, *shape[1:]) for name, shape in fused.shapes.items() if shape[1:]
    }
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

    plans = plans_without_loss(outcomes, 5e-6, fuse="layer_norms")
    assert sum(len(plan.fusions) for plan in plans) >= count
    assert bool(count) == any(plan.fusions for plan in plans)


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

    plans = plans_without_loss(outcomes, 0.0, fuse="layer_norms")
    assert any(plan.fusions for plan in plans)
