"""A bias that the pass puts behind a product is one kernel with it, in either type."""

from __future__ import annotations

import pytest

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.view import Item
from grappler_pass.planning.plan import Plan
from grappler_pass.pricing.seconds import Pricer
from tests.grappler_pass.fusions.rewriting import fused

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
    **dict.fromkeys(("product", "scaled", "shifted", "act", "second", "fetch"), IMAGE),
}


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
    monkeypatch.setattr(Pricer, "_is_fused", lambda self, node: False)
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
