"""Seconds per step of nodes and casts: what an added node costs, and who is charged."""

from __future__ import annotations

import pytest

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.draft import Draft
from grappler_pass.graph import Item, Port
from grappler_pass.pipeline import optimize
from grappler_pass.plan import Plan
from grappler_pass.pricing import ADDED_NODE_SECONDS
from grappler_pass.shapes import shapes_from_graph_def
from tests.rewriters import settings_of
from tests.text_graph import graph_from_text

SMALL_LAYERS = """
x = Placeholder shape=[32,32]
w1 = Placeholder shape=[32,64]
b1 = Placeholder shape=[64]
w2 = Placeholder shape=[64,64]
b2 = Placeholder shape=[64]
w3 = Placeholder shape=[64,10]
b3 = Placeholder shape=[10]
layer1 = _FusedMatMul(x, w1, b1) fused_ops=[BiasAdd,Relu] num_args=1
layer2 = _FusedMatMul(layer1, w2, b2) fused_ops=[BiasAdd,Relu] num_args=1
y = _FusedMatMul(layer2, w3, b3) fused_ops=[BiasAdd] num_args=1
"""


def planned(text: str, low_dtype: str, profile: str) -> tuple[Plan, Draft]:
    graph = graph_from_text(text)
    drafts: list[Draft] = []
    models = {"CPU": CostModel(DeviceProfile.load(profile))}
    rewrite = optimize(
        graph,
        Item(fetch=("y",)),
        settings_of(low_dtype, "O1", models=models),
        shapes=lambda: shapes_from_graph_def(graph),
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    assert rewrite.plan is not None
    return rewrite.plan, drafts[-1]


@pytest.mark.parametrize("low_dtype", ["float16", "bfloat16"])
def test_small_layers_are_not_worth_their_casts(low_dtype: str) -> None:
    plan, _ = planned(SMALL_LAYERS, low_dtype, "cpu-avx512-bf16")
    assert plan.is_empty


def test_large_layers_are() -> None:
    text = SMALL_LAYERS.replace("32", "1024").replace("64", "1024")
    plan, _ = planned(text, "bfloat16", "cpu-avx512-bf16")
    assert not plan.is_empty


@pytest.mark.parametrize(
    ("profile", "overhead"), [("cpu-avx512-bf16", ADDED_NODE_SECONDS), ("v100", 0.0)]
)
def test_an_added_cast_costs_a_cpu_more_than_its_kernel(
    profile: str, overhead: float
) -> None:
    _, draft = planned(SMALL_LAYERS, "float16", profile)
    model = draft.settings.models["CPU"]
    port = Port(draft.view.index["w2"], 0)
    kernel = model.cast_price(64 * 64, "float32", "float16").seconds
    assert draft.prices.down[port] == pytest.approx(kernel + overhead)


def test_a_constant_is_cast_beforehand_and_costs_nothing() -> None:
    ones = ",".join(["1"] * 64)
    given = "b2 = Placeholder shape=[64]"
    text = SMALL_LAYERS.replace(given, f"b2 = Const value=[{ones}]")
    _, draft = planned(text, "float16", "cpu-avx512-bf16")
    assert draft.prices.down[Port(draft.view.index["b2"], 0)] == 0.0


def test_every_node_that_may_go_low_knows_its_probe_and_its_error() -> None:
    _, draft = planned(SMALL_LAYERS, "bfloat16", "cpu-avx512-bf16")
    index = draft.view.index
    assert draft.prices.probes[index["layer1"]] is not None
    assert min(draft.prices.errors[index["layer1"]]) > 0.0
    assert draft.prices.probes[index["x"]] is None
    assert draft.prices.low[index["x"]] is None
