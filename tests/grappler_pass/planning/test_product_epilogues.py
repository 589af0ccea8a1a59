"""A bias that the pass puts behind a product is one kernel with it, in either type."""

from __future__ import annotations

import pytest
import tensorflow as tf

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.view import Item
from grappler_pass.planning.plan import Plan
from grappler_pass.planning.prices import Pricer
from tests.grappler_pass.fusions.rewriting import fused
from tests.onednn import needs_onednn
from tests.op_calls import fused as fused_call
from tests.op_calls import matmul, seconds, spec
from tf_amp._tensorflow_private.functions import executed_graphs

# What activates it stays float32; by itself, a bias takes longer in 16 bits.
GRAPH = """
x = Placeholder
w = Placeholder
scale = Placeholder
shift = Placeholder
product = Conv2D(x, w) strides=[1,1,1,1] padding=SAME
scaled = Mul(product, scale)
shifted = AddV2(scaled, shift)
act = Softplus(shifted)
second = Conv2D(act, w) strides=[1,1,1,1] padding=SAME
fetch = Identity(second)
"""
IMAGE = (16, 16, 16, 256)
SHAPES = {
    "x": IMAGE,
    "w": (3, 3, 256, 256),
    "scale": (256,),
    "shift": (256,),
    "summed": IMAGE,
    **dict.fromkeys(("product", "scaled", "shifted", "act", "second", "fetch"), IMAGE),
}


SHORTCUT = GRAPH.replace("AddV2(scaled, shift)", "AddV2(summed, shift)").replace(
    "shifted =", "summed = AddN(x, scaled) N=2\nshifted ="
)


def planned(text: str = GRAPH, **given: object) -> Plan:
    """Return the plan for a CPU that has 16-bit units."""
    models = {"CPU": CostModel(DeviceProfile.load("cpu-avx512-bf16"))}
    rewrite = fused(text, SHAPES, Item(fetch=("fetch",)), models=models, **given)
    assert rewrite.plan is not None
    return rewrite.plan


def low_nodes(text: str = GRAPH) -> list[str]:
    """Return the nodes in 16 bits."""
    return [row.slot.node for row in planned(text).decisions if row.is_low]


def test_a_bias_goes_with_its_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert low_nodes() == ["product", "scaled", "shifted", "second"]
    monkeypatch.setattr(Pricer, "_find_epilogues", lambda self: {})
    assert "shifted" not in low_nodes()


@pytest.mark.parametrize("reader", ["Tanh(product)", "Tanh(scaled)"])
def test_what_is_read_elsewhere_is_priced_by_itself(reader: str) -> None:
    text = GRAPH.replace(
        "fetch = Identity(second)",
        f"""
other = {reader}
flat = AddV2(second, other)
fetch = Identity(flat)
""",
    )
    assert "shifted" not in low_nodes(text)


def test_a_bias_that_stays_float32_is_not_priced_twice() -> None:
    assert planned(exclude=("shifted",)).seconds_before == planned().seconds_before


def test_so_does_the_sum_with_a_shortcut(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row.slot.node: row for row in planned(SHORTCUT).decisions}
    # The bias is in the place of the scales, the sum in that of the shift.
    assert [rows[name].op for name in ("scaled", "shifted")] == ["BiasAdd", "AddV2"]
    assert rows["shifted"].seconds_float32 == rows["scaled"].seconds_float32 == 0.0
    broadcast = planned(SHORTCUT, x=(16, 1, 1, 256), exclude=("second",))
    rows = {row.slot.node: row for row in broadcast.decisions}
    assert rows["shifted"].seconds_float32 > 0.0
    monkeypatch.setattr(Pricer, "_find_epilogues", lambda self: {})
    rows = {row.slot.node: row for row in planned(SHORTCUT).decisions}
    assert rows["shifted"].seconds_float32 > 0.0


@needs_onednn
@pytest.mark.parametrize("batch", [2, None])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16], ids=lambda d: d.name)
def test_tensorflow_makes_one_kernel_of_all_that(dtype: tf.DType, batch: int | None):
    raw = tf.raw_ops
    weights = tf.fill([3, 3, 16, 16], tf.constant(0.5, dtype))

    @tf.function(input_signature=[tf.TensorSpec([batch, 8, 8, 16], dtype)])
    def block(x: tf.Tensor) -> tf.Tensor:
        product = raw.Conv2D(input=x, filter=weights, strides=[1] * 4, padding="SAME")
        biased = raw.BiasAdd(value=product, bias=weights[0, 0, 0])
        return raw.Relu(features=raw.AddV2(x=x, y=biased)) + x

    graphs = executed_graphs(lambda: block(tf.ones([2, 8, 8, 16], dtype)))
    nodes = [node for graph in graphs for node in graph.node if "Fused" in node.op]
    fused_ops = [list(node.attr["fused_ops"].list.s) for node in nodes]
    assert fused_ops == [[b"BiasAdd", b"Add", b"Relu"]]


@pytest.mark.parametrize("profile", ["cpu-amx-bf16", "cpu-intel-avx512-bf16"])
def test_a_bias_with_its_product_in_float16_costs_what_onednns_reference_takes(
    profile: str,
) -> None:
    inputs = (spec(128, 2048), spec(2048, 2048), spec(2048))
    model = CostModel(DeviceProfile.load(profile))
    alone = matmul(128, 2048, 2048)
    biased = fused_call("_FusedMatMul", ("BiasAdd",), inputs, spec(128, 2048))
    float32, float16 = (
        seconds(biased, dtype, model) - seconds(alone, dtype, model)
        for dtype in ("float32", "float16")
    )
    assert float16 > 100.0 * float32
    assert float16 > seconds(alone, "float32", model)
