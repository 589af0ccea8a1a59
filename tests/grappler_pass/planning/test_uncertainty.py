"""How sure a predicted gain is, and what that and ties make of a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from grappler_pass.costs import CostModel, DeviceProfile, OpCall, Price
from grappler_pass.graph.view import Graph
from grappler_pass.planning.coloring import gain_error
from grappler_pass.planning.cut import FLOAT32_SIDE, CastTerm, minimum_cut
from grappler_pass.planning.plan import Cause
from grappler_pass.planning.prices import CastPrice, Prices
from tests.grappler_pass.planning.drafts import planned, problem_of
from tests.text_graph import graph_from_text

TWO_PRODUCTS = """
x = Placeholder shape=[{edge},{edge}]
v = Placeholder shape=[{edge},{edge}]
w = Placeholder shape=[{edge},{edge}]
product1 = MatMul(x, v)
product2 = MatMul(x, w)
y = AddV2(product1, product2)
"""


@dataclasses.dataclass(frozen=True)
class FixedPrices:
    """A device on which each product takes given seconds, and all else no time."""

    float32: float
    low: float
    error: float = 0.02
    profile: DeviceProfile = dataclasses.field(
        default_factory=lambda: DeviceProfile.load("cpu-avx512-bf16")
    )

    def price(self, call: OpCall, dtype: str) -> Price:
        """Return the seconds of a product."""
        seconds = self.float32 if dtype == "float32" else self.low
        return Price(seconds * (call.op == "MatMul"), "learned", self.error)

    def cast_price(self, elements: int, source: str, target: str) -> Price:
        """Return what the device's own model says."""
        return CostModel(self.profile).cast_price(elements, source, target)


@pytest.mark.parametrize(("spread", "applied"), [(0.01, True), (0.6, False)])
def test_a_gain_within_its_error_is_not_applied(spread: float, applied: bool) -> None:
    draft = planned(TWO_PRODUCTS.format(edge=256), FixedPrices(10e-3, 8e-3, spread))
    plan = draft.plan
    assert plan.is_empty is not applied
    if applied:
        assert 0.0 < plan.gain_error < plan.seconds_before - plan.seconds_after
        assert "between" in plan.summary()
    else:
        assert Cause.MARGIN in {d.reason.cause for d in plan.decisions}


@pytest.mark.parametrize(
    ("float32", "low", "applied"),
    [
        (10e-3, 9.2e-3, True),
        (10e-3, 9.6e-3, False),
        # Most of the step, and as long as a few casts.
        (15e-6, 2e-6, False),
        (60e-6, 2e-6, True),
    ],
)
def test_prices_alone_apply_a_share_of_the_step_that_is_noticed(
    float32: float, low: float, applied: bool
) -> None:
    prices = FixedPrices(float32, low, 0.001)
    draft = planned(TWO_PRODUCTS.format(edge=8), prices)
    assert draft.plan.is_empty is not applied
    if not applied:
        assert {Cause.MARGIN} < {d.reason.cause for d in draft.plan.decisions}
        assert draft.gain_error == 0.0


def test_an_exact_tie_goes_to_the_smaller_unless_told_otherwise() -> None:
    def choice(tie: float) -> bool:
        text = TWO_PRODUCTS.format(edge=64)
        draft = planned(text, FixedPrices(1e-3, 1e-3), tie=tie)
        casts = dict.fromkeys(draft.prices.casts, CastPrice())
        free = dataclasses.replace(draft.prices, casts=casts)
        _, problem = problem_of(dataclasses.replace(draft, prices=free), tie)
        return any(minimum_cut(problem))

    assert choice(0.01)
    assert not choice(0.0)


def test_a_cast_that_must_stay_is_charged_in_front() -> None:
    text = """
        x = Placeholder shape=[64,64]
        w = Placeholder shape=[64,64]
        product = MatMul(x, w)
        kept = Cast(product) SrcT=float32 DstT=int32
        y = Identity(kept) T=int32
        """

    def has_up_term(*preserve: str) -> bool:
        _, problem = problem_of(planned(text, preserve=preserve))
        return any(FLOAT32_SIDE in term.readers for term in problem.casts)

    assert has_up_term("kept") and not has_up_term()


def prices_of(sources: Sequence[str]) -> Prices:
    count = len(sources)
    return Prices(
        float32=(1.0,) * count,
        low=(0.5,) * count,
        sources=tuple(sources),
        casts={},
        errors=((0.1, 0.1),) * count,
    )


def error_of(ops: str, prices: Prices) -> float:
    lines = [f"n{i} = {op}" for i, op in enumerate(ops.split())]
    view = Graph(graph_from_text("\n".join(lines)))
    return gain_error(view, prices, range(len(lines)), ())


def test_errors_of_one_op_add_up_and_those_of_two_in_quadrature() -> None:
    one = error_of("NoOp", prices_of(["profile"]))
    twice = prices_of(["profile"] * 2)
    assert error_of("NoOp NoOp", twice) == pytest.approx(2 * one)
    assert error_of("NoOp Placeholder", twice) == pytest.approx(math.sqrt(2) * one)


def test_a_cast_adds_its_own_error() -> None:
    view = Graph(graph_from_text("n = NoOp"))
    term = CastTerm(0, frozenset({1}), 1.0, 1.0, error=0.2)
    prices = prices_of(["profile"])
    assert gain_error(view, prices, (), [(2.0, term)]) == pytest.approx(0.4)


def test_what_was_learned_of_either_type_has_no_error_in_common() -> None:
    learned = error_of("NoOp", prices_of(["learned"]))
    assert learned == pytest.approx(math.hypot(0.1, 0.05))
    assert learned > error_of("NoOp", prices_of(["profile"]))
