"""What could flip a plan is at stake, is measured, and then decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel, DeviceProfile, TensorSpec
from grappler_pass.costs.database.price_list import Measured, PriceList, Sample
from grappler_pass.costs.database.probes import MEASURED_DTYPE, Probe
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import optimize
from grappler_pass.planning.assignment import FLOAT32_SIDE, CastTerm, minimum_cut
from grappler_pass.planning.cut_problem import Variables, problem_from_prices
from grappler_pass.planning.draft import Draft, Outcome, Stake, Trial
from grappler_pass.planning.plan import Cause, Plan
from grappler_pass.planning.uncertainty import stakes, without_rest
from tests.rewriters import settings_of
from tests.text_graph import graph_from_text

PROFILE = DeviceProfile.load("cpu-avx512-bf16")
LOW = "bfloat16"

TWO_PRODUCTS = """
x = Placeholder shape=[{edge},{edge}]
v = Placeholder shape=[{edge},{edge}]
w = Placeholder shape=[{edge},{edge}]
product1 = MatMul(x, v)
product2 = MatMul(x, w)
y = AddV2(product1, product2)
"""


@dataclasses.dataclass
class Clock:
    """A tuner that finds fixed seconds for every op, by dtype."""

    prices: PriceList
    seconds: dict[str, float]
    spread: float = 0.02
    asked: list[tuple[Stake, ...]] = dataclasses.field(default_factory=list)

    def measure(self, found: Sequence[Stake], low_dtype: str) -> bool:
        self.asked.append(tuple(found))
        self.prices.add(
            Measured(stake.probe, dtype, self._sample(self.seconds[dtype]))
            for stake in found
            if stake.probe.op != "Cast"
            for dtype in ("float32", low_dtype)
        )
        return True

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        return Outcome.UNKNOWN

    def _sample(self, seconds: float) -> Sample:
        return Sample(seconds, seconds, self.spread, 10, 1.0)


def clock(float32: float, low: float, spread: float = 0.02) -> Clock:
    return Clock(PriceList(), {"float32": float32, LOW: low}, spread)


def planned(
    graph: GraphDef, prices: PriceList, **given: object
) -> tuple[Plan, list[Draft]]:
    """Plan with prices of a profile and a list; also return the drafts on the way."""
    drafts: list[Draft] = []
    models = {"CPU": CostModel(PROFILE, prices)}
    chosen = settings_of(LOW, "O1", models=models, **given)
    rewrite = optimize(
        graph,
        Item(fetch=("y",)),
        chosen,
        shapes=lambda: shapes_from_graph_def(graph),
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    assert rewrite.plan is not None
    return rewrite.plan, drafts


def all_measured(graph: GraphDef, tuner: Clock) -> PriceList:
    """Have every op of a graph measured that can be."""
    _, drafts = planned(graph, PriceList())
    probes = {probe for probe in drafts[-1].prices.probes if probe is not None}
    tuner.measure([Stake(probe, 1.0, "CPU") for probe in probes], LOW)
    return tuner.prices


def two_products(edge: int) -> GraphDef:
    return graph_from_text(TWO_PRODUCTS.format(edge=edge))


def dtypes_of(plan: Plan, op: str) -> set[str]:
    return {decision.dtype for decision in plan.filter(op=op).decisions}


def test_a_measured_price_flips_the_cut() -> None:
    graph = two_products(1024)
    profile_says, _ = planned(graph, PriceList())
    assert dtypes_of(profile_says, "MatMul") == {LOW}
    plan, _ = planned(graph, all_measured(graph, clock(1e-3, 5e-3)))
    assert dtypes_of(plan, "MatMul") == {"float32"}
    assert {row.source for row in plan.filter(op="MatMul").decisions} == {"measured"}


def test_a_tuner_is_asked_about_what_is_open_and_its_answer_decides() -> None:
    graph = two_products(96)
    for low_seconds, expected in ((1e-4, LOW), (2e-3, "float32")):
        tuner = clock(1e-3, low_seconds)
        plan, _ = planned(graph, tuner.prices, tuner=tuner)
        assert tuner.asked
        assert dtypes_of(plan, "MatMul") == {expected}


def test_a_tuner_is_asked_three_times_at_most() -> None:
    tuner = clock(1e-3, 1e-3, spread=0.5)
    planned(two_products(96), tuner.prices, tuner=tuner)
    assert len(tuner.asked) == 3


def test_a_tuner_is_not_asked_twice_when_it_learned_nothing() -> None:
    @dataclasses.dataclass
    class Exhausted(Clock):
        def measure(self, found: Sequence[Stake], low_dtype: str) -> bool:
            self.asked.append(tuple(found))
            return False

    tuner = Exhausted(PriceList(), {})
    planned(two_products(96), tuner.prices, tuner=tuner)
    assert len(tuner.asked) == 1


def test_a_forced_level_asks_no_tuner() -> None:
    tuner = clock(1.0, 1.0)
    graph = two_products(96)
    models = {"CPU": CostModel(PROFILE, tuner.prices)}
    optimize(
        graph,
        Item(fetch=("y",)),
        settings_of(LOW, "O2", models=models, tuner=tuner),
        shapes=lambda: shapes_from_graph_def(graph),
    )
    assert not tuner.asked


def test_one_stake_stands_for_all_nodes_with_its_probe() -> None:
    _, drafts = planned(two_products(96), PriceList())
    draft = drafts[-1]
    found = stakes(draft)
    products = [stake for stake in found if stake.probe.op == "MatMul"]
    assert len(products) == 1
    error, low_error = draft.prices.errors[draft.view.index["product1"]]
    node = draft.view.index["product1"]
    alone = error * draft.prices.float32[node]
    alone += low_error * (draft.prices.low[node] or 0.0)
    assert products[0].seconds == pytest.approx(2 * alone)
    assert [s.seconds for s in found] == sorted(s.seconds for s in found)[::-1]


def test_casts_between_open_nodes_are_at_stake_too() -> None:
    _, drafts = planned(two_products(96), PriceList())
    casts = [s.probe for s in stakes(drafts[-1]) if s.probe.op == "Cast"]
    assert casts
    assert all(probe.inputs[0].shape == (96 * 96,) for probe in casts)


def test_nothing_is_at_stake_when_all_prices_are_certain() -> None:
    graph = two_products(96)
    drafts: list[Draft] = []
    optimize(
        graph,
        Item(fetch=("y",)),
        settings_of(LOW, "O1"),  # prices without an error
        shapes=lambda: shapes_from_graph_def(graph),
        observer=lambda stage, draft, seconds: drafts.append(draft),
    )
    assert stakes(drafts[-1]) == ()


def test_nothing_is_at_stake_twice_once_it_was_measured() -> None:
    tuner = clock(1e-3, 0.98e-3)
    _, drafts = planned(two_products(96), tuner.prices, tuner=tuner)
    assert not [s for s in stakes(drafts[-1]) if s.probe.op != "Cast"]


def test_a_stake_names_the_device_of_its_op() -> None:
    graph = two_products(96)
    device = "/job:localhost/replica:0/task:0/device:CPU:1"
    _, drafts = planned(graph, PriceList())
    assert {stake.device for stake in stakes(drafts[-1])} == {""}
    for node in graph.node:
        node.device = device
    _, drafts = planned(graph, PriceList())
    found = stakes(drafts[-1])
    assert {stake.device for stake in found} == {device}
    assert {stake.probe.op for stake in found} >= {"Cast", "MatMul"}


def test_probes_leave_the_measured_dtype_open() -> None:
    _, drafts = planned(two_products(96), PriceList())
    (probe,) = {
        probe
        for probe in drafts[-1].prices.probes
        if probe is not None and probe.op == "MatMul"
    }
    assert {spec.dtype for spec in probe.inputs} == {MEASURED_DTYPE}


@pytest.mark.parametrize(("spread", "applied"), [(0.01, True), (0.6, False)])
def test_a_gain_within_its_error_is_not_applied(spread: float, applied: bool) -> None:
    graph = two_products(256)
    prices = all_measured(graph, clock(10e-3, 8e-3, spread))
    plan, _ = planned(graph, prices)
    assert plan.is_empty is not applied
    if applied:
        assert 0.0 < plan.gain_error < plan.seconds_before - plan.seconds_after
        assert "±" in plan.summary()
    else:
        assert Cause.MARGIN in {d.reason.cause for d in plan.decisions}


def test_an_exact_tie_goes_to_the_smaller_unless_told_otherwise() -> None:
    def choice(tie: float) -> bool:
        graph = two_products(64)
        _, drafts = planned(graph, all_measured(graph, clock(1e-3, 1e-3)), tie=tie)
        prices = drafts[-1].prices
        free = dataclasses.replace(
            prices,
            up=dict.fromkeys(prices.up, 0.0),
            down=dict.fromkeys(prices.down, 0.0),
        )
        return any(low_at(dataclasses.replace(drafts[-1], prices=free), tie))

    assert choice(0.01)
    assert not choice(0.0)


def low_at(draft: Draft, tie: float) -> tuple[bool, ...]:
    variables = Variables.from_constraints(draft.constraints)
    return minimum_cut(problem_from_prices(draft, variables, tie))


def test_a_cast_that_must_stay_is_charged_in_front() -> None:
    graph = graph_from_text(
        """
        x = Placeholder shape=[64,64]
        w = Placeholder shape=[64,64]
        product = MatMul(x, w)
        kept = Cast(product) SrcT=float32 DstT=int32
        y = Identity(kept) T=int32
        """
    )

    def up_terms(preserve: tuple[str, ...]) -> list[CastTerm]:
        drafts: list[Draft] = []
        optimize(
            graph,
            Item(fetch=("y",), preserve=preserve),
            settings_of(LOW, "O1"),
            shapes=lambda: shapes_from_graph_def(graph),
            observer=lambda stage, draft, seconds: drafts.append(draft),
        )
        draft = drafts[-1]
        variables = Variables.from_constraints(draft.constraints)
        problem = problem_from_prices(draft, variables)
        return [t for t in problem.casts if FLOAT32_SIDE in t.readers]

    assert not up_terms(())
    assert up_terms(("kept",))


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_the_last_prices_that_together_are_next_to_nothing_are_left_out(
    share: float,
) -> None:
    probe = Probe("Tanh", (), (("T", 0),), (TensorSpec((8,), MEASURED_DTYPE),))
    found = [Stake(probe, 0.5**number, "CPU") for number in range(20)]
    asked = without_rest(found, share)
    assert asked == tuple(found[: len(asked)])
    assert sum(stake.seconds for stake in found[len(asked) :]) <= share
    assert sum(stake.seconds for stake in found[len(asked) - 1 :]) > share
    assert without_rest([], share) == ()


def test_where_no_price_can_flip_the_plan_the_level_of_each_op_is_measured() -> None:
    graph = two_products(1024)
    tuner = clock(1e-3, 0.4e-3)
    _, drafts = planned(graph, PriceList())
    (product,) = (s for s in stakes(drafts[-1]) if s.probe.op == "MatMul")
    node, prices = drafts[-1].view.index["product1"], drafts[-1].prices
    assert product.seconds == pytest.approx(
        2 * prices.errors[node][0] * prices.float32[node]
    )
    _, drafts = planned(graph, tuner.prices, tuner=tuner)
    assert len(tuner.asked) == 1
    assert drafts[-1].prices.sources[node] == "measured"
    assert drafts[-1].prices.float32[node] == 1e-3
