"""Prices where elementwise ops and casts are fused with their neighbors."""

from __future__ import annotations

import dataclasses

import pytest

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.costs.model import Learned, cast_works, cell_of
from grappler_pass.planning.prices import NODE_SECONDS
from tests.grappler_pass.planning.drafts import down, low_nodes, planned, seconds, up
from tests.rewriters import settings_of
from tf_amp.rewriting.graph_settings import settings_under_xla

CHAIN = """
x = Placeholder shape=[4096,4096]
w = Placeholder shape=[4096,4096]
first = MatMul(x, w)
scaled = Mul(first, first)
tanh = Tanh(scaled)
second = MatMul(tanh, w)
third = MatMul(second, w)
y = Neg(third)
"""


def test_a_chain_stays_float32_between_products_that_go_low() -> None:
    products = {"first", "second", "third"}
    draft = planned(CHAIN, "a100", under_xla=True)
    assert low_nodes(draft) == products
    assert low_nodes(planned(CHAIN, "a100")) == products | {"scaled", "tanh"}
    # Casts at the ends of the chain are free, and others are not.
    assert up(draft, "first") == down(draft, "tanh") == 0.0
    assert down(draft, "w") > 0.0 and up(draft, "second") > 0.0


def test_a_chain_costs_the_bytes_at_its_ends_once() -> None:
    shorter = CHAIN.replace("tanh = Tanh(scaled)", "tanh = Identity(scaled)")
    long, short = (planned(t, "a100", under_xla=True) for t in (CHAIN, shorter))
    bandwidth = 1.79e12
    tensor_bytes = 4 * 4096 * 4096
    more = long.plan.seconds_before - short.plan.seconds_before
    assert more < 0.1 * tensor_bytes / bandwidth
    # The product's own price, and its result read by the chain.
    read = seconds(long, "first")[0] - seconds(planned(CHAIN, "a100"), "first")[0]
    assert read == pytest.approx(tensor_bytes / bandwidth, rel=0.2)
    viewed = CHAIN.replace(
        "scaled = Mul(first, first)", "view = Identity(first)\nscaled = Mul(view, view)"
    )
    behind = planned(viewed, "a100", under_xla=True).plan
    assert behind.seconds_before == pytest.approx(long.plan.seconds_before)
    assert behind.seconds_after == pytest.approx(long.plan.seconds_after)


@pytest.mark.parametrize("profile", ["cpu-avx512-bf16", "cpu-generic", "cpu-amx-bf16"])
def test_on_a_cpu_nothing_goes_low_since_xla_widens_every_product(
    profile: str,
) -> None:
    draft = planned(CHAIN, profile, under_xla=True)
    assert low_nodes(draft) == set()
    # What is compiled costs the executor nothing.
    assert draft.prices.executor == 0.0
    nodes = len(draft.view.nodes)
    assert planned(CHAIN, profile).prices.executor == pytest.approx(
        nodes * NODE_SECONDS
    )


def test_what_was_learned_outside_of_xla_does_not_count() -> None:
    sizes = 4096 * 4096, "float32", "bfloat16"
    cell = cell_of("Cast", cast_works(*sizes), "float32>bfloat16", "a100")
    learned = Learned()
    learned.add({cell: [4.0] * 3})
    model = CostModel(DeviceProfile.load("a100"), learned)
    assert model.cast_price(*sizes).source == "learned"
    settings = settings_of("bfloat16", "O1", models={"CPU": model})
    settings = dataclasses.replace(settings, own_steps=object())
    under = settings_under_xla(settings)
    assert under.own_steps is None and under.fuses
    cast = under.models["CPU"].cast_price(*sizes)
    assert cast.seconds < model.cast_price(*sizes).seconds / 50
    assert under.models["CPU"].profile.name == "a100 under XLA"
