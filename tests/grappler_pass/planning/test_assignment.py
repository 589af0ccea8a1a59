"""The minimum cut against brute force, its ties, its islands, its limits."""

from __future__ import annotations

import itertools
import math
import random
import time

import pytest

from grappler_pass.planning.cut import (
    FLOAT32_SIDE,
    CastTerm,
    Problem,
    islands,
    minimum_cut,
    seconds_of_flips,
)


def random_problem(seed: int) -> Problem:
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    sides = [FLOAT32_SIDE, *range(count)]

    def term() -> CastTerm:
        return CastTerm(
            producer=draw.choice(sides),
            readers=frozenset(draw.sample(sides, draw.randint(1, min(4, count)))),
            up_seconds=draw.choice([0.0, draw.uniform(0, 2)]),
            down_seconds=draw.choice([0.0, draw.uniform(0, 2)]),
        )

    return Problem(
        float32_seconds=[draw.uniform(0, 3) for _ in range(count)],
        low_seconds=[draw.uniform(0, 3) for _ in range(count)],
        casts=[term() for _ in range(draw.randint(0, 12))],
    )


def best_seconds(problem: Problem) -> float:
    count = len(problem.float32_seconds)
    return min(
        problem.seconds(low) for low in itertools.product([False, True], repeat=count)
    )


@pytest.mark.parametrize("block", range(10))
def test_the_cut_costs_what_brute_force_finds(block: int) -> None:
    for seed in range(60 * block, 60 * (block + 1)):
        problem = random_problem(seed)
        best = pytest.approx(best_seconds(problem), rel=1e-6, abs=1e-6)
        assert problem.seconds(minimum_cut(problem)) == best, seed
        assert problem.seconds(minimum_cut(problem, low_at_ties=True)) == best, seed


ONE_CAST = CastTerm(0, frozenset({1}), 1.0, 1.0)
DEAR_CAST = CastTerm(0, frozenset({1}), 1e6, 1e6)
AT_FLOAT32 = CastTerm(FLOAT32_SIDE, frozenset({1}), 1.0, 1.0)


@pytest.mark.parametrize(
    ("problem", "low", "low_at_ties"),
    [
        (Problem([], [], []), (), ()),
        (Problem([1.0, 2.0], [2.0, 1.0], [ONE_CAST]), (False, False), (True, True)),
        # A side that takes infinitely long is not chosen.
        (
            Problem([math.inf, 0.0, 0.0], [0.0, math.inf, 0.0], [DEAR_CAST]),
            *((True, False, False), (True, False, True)),
        ),
        # What must be float32 may read a tensor that is cast for it alone.
        (
            Problem([3.0, 0.0], [0.0, math.inf], [ONE_CAST, AT_FLOAT32]),
            *((True, False), (True, False)),
        ),
        # Each of three readers gains 1, their cast costs 2, if it is charged once.
        (
            Problem(
                [1.0] * 3,
                [0.0] * 3,
                [CastTerm(FLOAT32_SIDE, frozenset({0, 1, 2}), 2.0, 2.0)],
            ),
            *((True, True, True), (True, True, True)),
        ),
        # Terms twelve orders of magnitude apart do not overflow.
        (
            Problem(
                [1e3, 1e-9], [0.0, 2e-9], [CastTerm(0, frozenset({1}), 1e-9, 1e-9)]
            ),
            *((True, False), (True, True)),
        ),
    ],
)
def test_the_cut_has_the_smallest_cost_and_ties_go_to_a_side(
    problem: Problem, low: tuple[bool, ...], low_at_ties: tuple[bool, ...]
) -> None:
    assert minimum_cut(problem) == low
    assert minimum_cut(problem, low_at_ties=True) == low_at_ties


def test_a_flip_costs_what_the_whole_assignment_then_costs_more() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        low = list(minimum_cut(problem))
        flips = seconds_of_flips(problem, low)
        for variable, more in enumerate(flips):
            other = [is_low != (v == variable) for v, is_low in enumerate(low)]
            difference = problem.seconds(other) - problem.seconds(low)
            assert more == pytest.approx(difference, abs=1e-9), seed
        assert min(flips) > -1e-6, seed


def test_a_hundred_thousand_variables_are_cut_in_seconds() -> None:
    count = 100_000
    casts = [CastTerm(v, frozenset({v + 1}), 0.5, 0.5) for v in range(count - 1)]
    problem = Problem([1.0] * count, [0.9] * count, casts)
    begin = time.process_time()
    assert all(minimum_cut(problem))
    assert time.process_time() - begin < 10.0


def test_a_low_component_without_an_anchor_is_an_island() -> None:
    casts = [
        CastTerm(0, frozenset({1}), 1.0, 1.0),
        CastTerm(2, frozenset({3}), 1.0, 1.0),
    ]
    problem = Problem([0.0] * 4, [0.0] * 4, casts)
    assert islands(problem, (True,) * 4, anchors=[0]) == (2, 3)
    assert islands(problem, (True, False, True, True), anchors=[0]) == (2, 3)
    assert islands(problem, (False, True, False, False), anchors=[0]) == (1,)
