"""Scales of channels are folded into weights where nothing else reads the product."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

import tf_amp
from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.fusions import RULE_TABLE, RULES
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.pipeline import Settings
from grappler_pass.planning.draft import Outcome, Trial
from grappler_pass.planning.plan import Cause, Plan, Reason
from tests.grappler_pass.fusions.rewriting import CASES
from tests.programs import (
    Program,
    captured_as_by_grappler,
    run,
    run_with_grappler,
    with_state,
)
from tests.rewriters import LargePrices, rewritten_by
from tests.sketch import Sketch, sketch
from tf_amp._tensorflow_private.functions import executed_graphs

PROFILE = CostModel(DeviceProfile.load("cpu-generic"))
fused = CASES["channel_scales"]
BEFORE = fused.text
SHORTCUT = CASES[next(title for title in CASES if "shortcut" in title)]


def test_a_plan_says_what_was_folded() -> None:
    rewrite = fused()
    (fusion,) = rewrite.plan.fusions
    assert (fusion.rule, fusion.node) == ("channel_scales", "product")
    assert str(fusion.reason) in str(rewrite.plan)
    assert (fusion.reason.cause, fusion.reason.detail) == (
        Cause.FUSED,
        RULE_TABLE["channel_scales"].gain,
    )
    assert not rewrite.plan.declined_fusions
    assert Plan.from_json(rewrite.plan.to_json()) == rewrite.plan
    assert rewrite.plan.predicted_speedup > 1.0
    # Memory before it is that of the graph as it arrived, without scaled weights.
    plan = rewrite.plan
    image, weights = (4 * math.prod(fused.shapes[name] or ()) for name in "xw")
    assert plan.peak_bytes_before - plan.held_bytes == image
    assert plan.peak_bytes_after - plan.peak_bytes_before == weights


def test_of_two_products_one_gets_what_is_added_to_their_sum() -> None:
    text = SHORTCUT.text.replace(
        "summed = AddN(x, scaled) N=2",
        """second = Conv2D(x, w) strides=[1,1,1,1] padding=SAME
rescaled = Mul(second, scale)
summed = AddN(rescaled, scaled) N=2""",
    )
    nodes = {node.name: node for node in SHORTCUT(text).graph_def.node}
    assert [nodes[name].op for name in ("scaled", "rescaled")] == [
        "BiasAdd",
        "Identity",
    ]
    assert list(nodes["shifted"].input) == ["scaled", "rescaled"]


def test_a_plan_that_steps_find_slower_leaves_the_graph_as_it_was() -> None:
    class Slower:
        def outcome(self, trial: Trial, decided: object) -> Outcome:
            assert {node.name for node in trial.after.node} > {"product", "scaled"}
            assert trial.seconds_after < trial.seconds_before
            return Outcome.SLOWER

    rewrite = fused(own_steps=Slower())
    assert not rewrite.changed and not rewrite.plan.fusions
    (declined,) = rewrite.plan.declined_fusions
    assert declined.seconds > 0.0 and declined.reason == Reason(Cause.TRIAL)


@pytest.mark.parametrize(
    ("given", "cause", "is_gain"),
    [
        ({"product": (1, 2, 2, 64), "w": (3, 3, 2048, 64)}, Cause.FUSION_COST, False),
        ({"fusions": ("layer_norms",)}, Cause.FUSION_OFF, True),
        ({"fusions": ()}, Cause.FUSION_OFF, True),
        ({"low_dtype": "float16"}, Cause.FUSION_OFF, True),
    ],
    ids=str,
)
def test_what_could_be_folded_and_is_not_is_listed_with_its_reason(
    given: dict, cause: Cause, is_gain: bool
) -> None:
    plan = fused(**given).plan
    (declined,) = plan.declined_fusions
    assert (declined.rule, declined.node) == ("channel_scales", "product")
    assert declined.reason.cause is cause
    assert (declined.seconds > 0.0) is is_gain
    assert str(declined.reason) in str(plan)
    assert "float16" in str(declined.reason) or "low_dtype" not in given
    assert "fused" not in plan.details() and "fusion" not in plan.summary()
    assert Plan.from_json(plan.to_json()) == plan


def _products(s: Sketch, op: str) -> tuple[tf.Tensor, int]:
    """Return a product and how many channels it has."""
    raw = tf.raw_ops
    steps = {"strides": [1] * 4, "padding": "SAME"}
    match op:
        case "Conv2D":
            return raw.Conv2D(
                input=s.feed(64, 6, 6, 8), filter=s.weight(3, 3, 8, 16), **steps
            ), 16
        case "DepthwiseConv2dNative":
            filters = s.weight(3, 3, 8, 2)
            return raw.DepthwiseConv2dNative(
                input=s.feed(64, 6, 6, 8), filter=filters, **steps
            ), 16
        case "Conv3D":
            steps["strides"] = [1] * 5
            filters = s.weight(2, 2, 2, 8, 16)
            return raw.Conv3D(input=s.feed(64, 4, 4, 4, 8), filter=filters, **steps), 16
    transposed = op == "MatMul, transposed"
    weights = s.weight(16, 8) if transposed else s.weight(8, 16)
    return tf.matmul(s.feed(64, 8), weights, transpose_b=transposed), 16


OPS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul", "MatMul, transposed")


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize(
    "rest", ["scale", "bias scale", "scale shift", "bias scale shift"]
)
@pytest.mark.parametrize("op", OPS)
def test_results_are_equal_but_for_rounding(op: str, rest: str, level: str) -> None:
    with sketch() as s:
        y, channels = _products(s, op)
        rank = y.shape.rank
        if "bias" in rest:
            y = tf.nn.bias_add(y, s.weight(channels, name="b"))
        scale = s.weight(channels, name="s")
        y = y * (
            tf.reshape(scale, [1] * (rank - 1) + [channels]) if rank > 2 else scale
        )
        if "shift" in rest:
            y = tf.nn.relu(y + s.weight(channels, name="t"))
        given = s.program(tf.identity(y))
    program = captured_as_by_grappler(given)
    settings = Settings(
        low_dtype="bfloat16",
        lists=OpLists.for_dtype("bfloat16"),
        models={"CPU": LargePrices(PROFILE)},
        opt_level=level,
        fusions=RULES,
        home=Home("CPU"),
    )
    rewrite = rewritten_by(program.graph_def, program.item, settings)
    assert [f.rule for f in rewrite.plan.fusions] == ["channel_scales"]
    after = with_state(rewrite.graph_def, program, given.graph_def)
    wanted = run(given.graph_def, given)[0]
    error = {"O1": 2e-6, "O2": 2e-2}[level] * np.abs(wanted).max()
    for way in (run, _run_optimized):
        np.testing.assert_allclose(way(after, given)[0], wanted, atol=error)


def _run_optimized(graph_def: GraphDef, program: Program) -> list[np.ndarray]:
    return run_with_grappler(dataclasses.replace(program, graph_def=graph_def))


@pytest.mark.parametrize("is_frozen", [True, False])
def test_constant_weights_are_scaled_once_and_others_where_that_pays(
    is_frozen: bool,
) -> None:
    random = np.random.default_rng(0)
    # Scaling the weights takes longer than scaling the product.
    w, b, scale, shift = (
        random.normal(size=size).astype(np.float32) for size in ((512, 256), *[256] * 3)
    )
    weights = w if is_frozen else tf.Variable(w)

    def product(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.bias_add(tf.matmul(x, weights), b)
        return tf.nn.relu(y * tf.constant(scale) + shift)

    x = random.normal(size=(8, 512)).astype(np.float32)
    tf_amp.enable(device_profile="cpu-generic", tune="off", fuse="channel_scales")
    try:
        function, outputs = tf.function(product), []
        graphs = executed_graphs(lambda: outputs.append(function(x).numpy()))
        fusions = tf_amp.plans()[-1].fusions if is_frozen else ()
    finally:
        tf_amp.disable()
    ops = [node.op for graph_def in graphs for node in graph_def.node]
    assert sum("FusedMatMul" in op for op in ops) == 1
    assert [each.seconds > 0.0 for each in fusions] == [True] * is_frozen
    # Nothing is left of what scales and shifts.
    assert ("Mul" in ops) is not is_frozen
    assert not is_frozen or not {"BiasAdd", "AddV2", "Relu"} & {*ops}
    wanted = np.maximum((x @ w + b) * scale + shift, 0.0)
    np.testing.assert_allclose(outputs[0], wanted, atol=1e-5 * wanted.max())


def test_converted_models_keep_scales_beside_weights_that_are_stored_in_16_bits(
    tmp_path: pathlib.Path,
) -> None:
    class Scaled(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = tf.Variable(np.ones((64, 64), np.float32))
            self.scale = tf.Variable(np.full(64, 2.0, np.float32))

        @tf.function(input_signature=[tf.TensorSpec((4096, 64))])
        def __call__(self, x: tf.Tensor) -> tf.Tensor:
            return tf.nn.relu(x @ self.weights * self.scale)

    given, target, model = tmp_path / "given", tmp_path / "target", Scaled()
    tf.saved_model.save(model, str(given))
    report = tf_amp.convert(
        given, target, weights="low", device_profile="cpu-avx512-bf16", opt_level="O2"
    )
    (plan,) = report.plans.values()
    assert any(row.is_low for row in plan.decisions)
    assert [each.reason.cause for each in plan.declined_fusions] == [Cause.FUSION_OFF]
    assert not plan.fusions
    loaded = tf.saved_model.load(str(target))
    np.testing.assert_array_equal(loaded(tf.ones((4096, 64))), np.full((4096, 64), 128))
