"""Whatever rows an import takes, graphs can be priced with them."""

from __future__ import annotations

import math

import pytest

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.costs.database.price_list import Measured, PriceList, Sample
from grappler_pass.costs.database.records import CostRow, row_from_text, text_from_row
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import optimize
from grappler_pass.planning.draft import Draft, Outcome
from grappler_pass.planning.plan import Plan
from tests.costs_examples import DEVICE, VERSION
from tests.rewriters import settings_of
from tests.text_graph import graph_from_text

GRAPH = """
x = Placeholder shape=[256,256]
w = Placeholder shape=[256,256]
product = MatMul(x, w)
bent = Tanh(product)
y = MatMul(bent, w)
"""
# The ends of what is taken: the wildest, and the least that is a number at all.
MOST = Sample(1e5, 1e5, 10.0, 1, 0.0)
LEAST = Sample(math.ulp(0.0), math.ulp(0.0), 0.0, 2**53, 0.0)


class Silent:
    """A tuner that finds nothing, so that stakes are looked for."""

    def measure(self, found: object, low_dtype: str) -> bool:
        return False

    def outcome(self, trial: object, decided: object) -> Outcome:
        return Outcome.UNKNOWN


def planned(prices: PriceList) -> tuple[Plan, Draft]:
    graph = graph_from_text(GRAPH)
    models = {"CPU": CostModel(DeviceProfile.load("cpu-avx512-bf16"), prices)}
    drafts: list[Draft] = []
    rewrite = optimize(
        graph,
        Item(fetch=("y",)),
        settings_of("bfloat16", "O1", models=models, tuner=Silent()),
        shapes=lambda: shapes_from_graph_def(graph),
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    assert rewrite.plan is not None
    return rewrite.plan, drafts[-1]


@pytest.mark.parametrize("float32", [MOST, LEAST])
@pytest.mark.parametrize("low", [MOST, LEAST])
def test_the_most_and_the_least_that_is_taken_can_be_priced(
    float32: Sample, low: Sample
) -> None:
    _, draft = planned(PriceList())
    probes = {probe for probe in draft.prices.probes if probe is not None}
    rows = [
        Measured(probe, dtype, sample)
        for probe in probes
        for dtype, sample in (("float32", float32), ("bfloat16", low))
    ]
    for row in rows:
        taken = CostRow(DEVICE, VERSION, row)
        assert row_from_text(text_from_row(taken)) == taken
    plan, _ = planned(PriceList(rows))
    assert "measured" in {decision.source for decision in plan.decisions}
    # What is left out is priced by what was measured around it.
    planned(PriceList(rows[2:]))
