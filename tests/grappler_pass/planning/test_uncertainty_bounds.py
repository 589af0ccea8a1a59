"""What uncertain prices leave open, without a graph, and how errors add up."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grappler_pass.graph.view import GraphView
from grappler_pass.planning.assignment import (
    FLOAT32_SIDE,
    CastTerm,
    Problem,
    minimum_cut,
)
from grappler_pass.planning.uncertainty import Bounds, bounds_of, gain_error
from grappler_pass.pricing.seconds import Prices
from tests.text_graph import graph_from_text

seconds = st.floats(0.0, 3.0)


@st.composite
def uncertain_problems(draw: st.DrawFn) -> tuple[Problem, list[float], list[float]]:
    """Draw a problem, an error per variable, and how far each price is off."""
    count = draw(st.integers(1, 6))
    sides = st.integers(FLOAT32_SIDE, count - 1)
    term = st.builds(
        CastTerm, sides, st.frozensets(sides, min_size=1), seconds, seconds
    )

    def each(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=count, max_size=count))

    problem = Problem(each(seconds), each(seconds), draw(st.lists(term, max_size=8)))
    return problem, each(st.floats(0.0, 1.0)), each(st.floats(-1.0, 1.0))


def moved(problem: Problem, offsets: Sequence[float]) -> Problem:
    low = [
        each * math.exp(off)
        for each, off in zip(problem.low_seconds, offsets, strict=True)
    ]
    return problem._replace(low_seconds=low)


@settings(max_examples=150)
@given(uncertain_problems())
def test_what_is_not_at_stake_keeps_its_color_at_any_prices_in_between(
    drawn: tuple[Problem, list[float], list[float]],
) -> None:
    problem, errors, off = drawn
    bounds = bounds_of(lambda sign: moved(problem, [sign * e for e in errors]))
    here = moved(problem, [e * t for e, t in zip(errors, off, strict=True)])
    low = minimum_cut(here)
    certain = [
        surely or (now and perhaps)
        for surely, now, perhaps in zip(bounds.dear, low, bounds.cheap, strict=True)
    ]
    # Costs, not colors: a tie may be broken either way by rounding.
    assert here.seconds(certain) == pytest.approx(here.seconds(low), rel=1e-6, abs=1e-6)


@settings(max_examples=60)
@given(uncertain_problems())
def test_dearer_prices_gain_less(drawn: tuple[Problem, list[float], object]) -> None:
    problem, errors, _ = drawn
    bounds = bounds_of(lambda sign: moved(problem, [sign * e for e in errors]))
    assert bounds.least_gain <= bounds.most_gain + 1e-9


def test_a_plan_that_may_not_be_worth_applying_is_at_stake_as_a_whole() -> None:
    bounds = Bounds((True, True, False), (True, False, False), 1.0, 3.0)
    assert bounds.at_stake(0.5) == {1}
    assert bounds.at_stake(2.0) == {0, 1}
    assert bounds.at_stake(4.0) == frozenset()


# How errors add up.


def prices_of(sources: Sequence[str], probes: Sequence[object]) -> Prices:
    count = len(sources)
    return Prices(
        float32=(1.0,) * count,
        low=(0.5,) * count,
        sources=tuple(sources),
        up={},
        down={},
        errors=((0.1, 0.1),) * count,
        probes=tuple(probes),
    )


def error_of(ops: str, prices: Prices) -> float:
    lines = [f"n{i} = {op}" for i, op in enumerate(ops.split())]
    view = GraphView.from_graph_def(graph_from_text("\n".join(lines)))
    return gain_error(view, prices, range(len(lines)), ())


def test_errors_of_one_op_add_up_and_those_of_two_in_quadrature() -> None:
    one = error_of("NoOp", prices_of(["profile"], [None]))
    twice = prices_of(["profile"] * 2, [None] * 2)
    assert error_of("NoOp NoOp", twice) == pytest.approx(2 * one)
    assert error_of("NoOp Placeholder", twice) == pytest.approx(math.sqrt(2) * one)


def test_a_cast_adds_its_own_error() -> None:
    view = GraphView.from_graph_def(graph_from_text("n = NoOp"))
    term = CastTerm(0, frozenset({1}), 1.0, 1.0, error=0.2)
    prices = prices_of(["profile"], [None])
    assert gain_error(view, prices, (), [(2.0, term)]) == pytest.approx(0.4)
