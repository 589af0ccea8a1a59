"""Prices where elementwise ops and casts are fused with their neighbors."""

from __future__ import annotations

import dataclasses

import pytest

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.costs.model import Learned, cast_works, cell_of
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item, Port
from grappler_pass.pipeline import optimize
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.prices import NODE_SECONDS
from tests.rewriters import settings_of
from tests.text_graph import graph_from_text
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


def draft_of(text: str, profile: str, *, fuses: bool) -> Draft:
    graph = graph_from_text(text)
    drafts: list[Draft] = []
    models = {"CPU": CostModel(DeviceProfile.load(profile))}
    settings = settings_of("bfloat16", "O1", models=models)
    optimize(
        graph,
        Item(fetch=("y",)),
        settings_under_xla(settings) if fuses else settings,
        shapes=lambda: shapes_from_graph_def(graph),
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    return drafts[-1]


def low_nodes(draft: Draft) -> set[str]:
    return {d.slot.node for d in draft.plan.decisions if d.is_low}


def seconds(draft: Draft, node: str) -> float:
    return draft.prices.float32[draft.view.index[node]]


def test_a_chain_stays_float32_between_products_that_go_low() -> None:
    products = {"first", "second", "third"}
    assert low_nodes(draft_of(CHAIN, "a100", fuses=True)) == products
    alone = low_nodes(draft_of(CHAIN, "a100", fuses=False))
    assert alone == products | {"scaled", "tanh"}


def test_casts_at_the_ends_of_a_chain_are_free_and_others_are_not() -> None:
    prices = draft_of(CHAIN, "a100", fuses=True)
    index = prices.view.index
    assert prices.prices.up[Port(index["first"], 0)] == 0.0
    assert prices.prices.down[Port(index["tanh"], 0)] == 0.0
    assert prices.prices.down[Port(index["w"], 0)] > 0.0
    assert prices.prices.up[Port(index["second"], 0)] > 0.0


def test_a_chain_costs_the_bytes_at_its_ends_once() -> None:
    short = CHAIN.replace("tanh = Tanh(scaled)", "tanh = Identity(scaled)")
    long, short = (draft_of(t, "a100", fuses=True) for t in (CHAIN, short))
    bandwidth = 1.79e12
    tensor_bytes = 4 * 4096 * 4096
    more = long.plan.seconds_before - short.plan.seconds_before
    assert more < 0.1 * tensor_bytes / bandwidth
    # The product's own price, and its result read by the chain.
    model = CostModel(DeviceProfile.load("a100"))
    alone = draft_of(CHAIN, "a100", fuses=False)
    read = seconds(long, "first") - seconds(alone, "first")
    assert read == pytest.approx(tensor_bytes / bandwidth, rel=0.2)
    assert model.profile.name == "a100"


@pytest.mark.parametrize(("fuses", "per_node"), [(True, 0.0), (False, NODE_SECONDS)])
def test_what_is_compiled_costs_the_executor_nothing(
    fuses: bool, per_node: float
) -> None:
    draft = draft_of(CHAIN, "cpu-avx512-bf16", fuses=fuses)
    nodes = len(draft.view.nodes)
    assert draft.prices.executor == pytest.approx(per_node * nodes)


def test_a_view_between_a_product_and_a_chain_changes_nothing() -> None:
    viewed = CHAIN.replace(
        "scaled = Mul(first, first)", "view = Identity(first)\nscaled = Mul(view, view)"
    )
    plain = draft_of(CHAIN, "a100", fuses=True).plan
    behind = draft_of(viewed, "a100", fuses=True).plan
    assert behind.seconds_before == pytest.approx(plain.seconds_before)
    assert behind.seconds_after == pytest.approx(plain.seconds_after)


@pytest.mark.parametrize("profile", ["cpu-avx512-bf16", "cpu-generic", "cpu-amx-bf16"])
def test_on_a_cpu_nothing_goes_low_since_xla_widens_every_product(
    profile: str,
) -> None:
    assert low_nodes(draft_of(CHAIN, profile, fuses=True)) == set()


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
