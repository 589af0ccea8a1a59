"""No row of a plan has a reason that its figures, or its neighbors', contradict."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import pytest

from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.pipeline import draft_graph
from grappler_pass.planning.decisions import plan_from_draft
from grappler_pass.planning.draft import DEFAULT_TIE, Draft, plan_casts
from grappler_pass.planning.plan import Cause, Decision, Plan
from tests.golden_lines import draft_of, own_key
from tests.random_graphs import random_graph
from tests.rewriters import ArbitraryPrices, settings_of

# Seconds are compared as the cut compares them: to a share of all.
_TINY = 1e-6
_SEEDS = range(1, 9)
_GOLDEN = ("bert", "session")
_FLIPS = 8


def contradictions(plan: Plan) -> Iterator[str]:
    """Yield each row whose sentence is not true of the figures beside it."""
    first: dict[str, Decision] = {}
    tiny = _TINY * (plan.seconds_before + plan.seconds_after)
    for row in plan.decisions:
        node = first.setdefault(row.slot.node, row)
        if not is_true(row, node, tiny):
            figures = node.seconds_float32, node.seconds_low, node.cast_seconds
            yield f"{row.slot} {row.op} {figures} {row.other_seconds} {row.why}"


def is_true(row: Decision, node: Decision, tiny: float) -> bool:
    """Return whether a row's reason is true of what its node takes."""
    cause, other = row.reason.cause, row.other_seconds
    if node.seconds_low is None or other is None:
        return cause not in _OF_FIGURES
    saved = node.seconds_float32 - node.seconds_low
    left = saved - node.cast_seconds
    match cause:
        case Cause.GAIN:
            return left > 0.0 and other > -tiny
        case Cause.NEIGHBORS:
            return left <= 0.0 and other > 0.0
        case Cause.MEMORY:
            favor = DEFAULT_TIE * node.seconds_float32
            return left <= 0.0 and -favor - tiny <= other <= 0.0
        case Cause.COST:
            return saved <= 0.0 and other > -tiny
        case Cause.CASTS:
            return saved > 0.0 and other > -tiny
    return True


_OF_FIGURES = (Cause.GAIN, Cause.NEIGHBORS, Cause.MEMORY, Cause.COST, Cause.CASTS)


program_of = functools.cache(random_graph)


@functools.cache
def randomly_priced(seed: int, level: str) -> Draft:
    """Plan a random graph at prices that are as random."""
    program = program_of(seed)
    models = {"CPU": ArbitraryPrices(seed, cast_scale=0.1)}
    settings = settings_of(
        "bfloat16", level, models=models, margin=0.0, predicts_memory=False
    )
    return draft_graph(
        program.graph_def,
        program.item,
        settings,
        shapes=lambda: shapes_from_graph_def(program.graph_def),
    )


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_no_reason_contradicts_its_figures_whatever_prices_are(level: str) -> None:
    seen: set[Cause] = set()
    for seed in _SEEDS:
        plan = randomly_priced(seed, level).plan
        assert not list(contradictions(plan)), seed
        seen |= {row.reason.cause for row in plan.decisions}
    wanted = {Cause.GAIN, Cause.NEIGHBORS, Cause.COST, Cause.CASTS}
    assert seen >= (wanted if level == "O1" else {Cause.FORCED})


@pytest.mark.parametrize("program", _GOLDEN)
@pytest.mark.parametrize("profile", ["cpu-amx-bf16", "cpu-intel-avx512-bf16"])
def test_no_reason_contradicts_its_figures_at_shipped_prices(
    program: str, profile: str
) -> None:
    draft = draft_of(own_key(program, profile))
    assert not list(contradictions(draft.plan))


def test_the_figure_of_a_row_is_what_its_other_type_would_make_of_the_plan() -> None:
    checked = 0
    for seed in _SEEDS:
        draft = randomly_priced(seed, "O1")
        before = draft.plan.seconds_after
        for slots in _alone(draft)[:_FLIPS]:
            after = plan_from_draft(_flipped(draft, slots)).seconds_after
            other = draft.plan.decisions[slots[0]].other_seconds
            assert after - before == pytest.approx(other, abs=1e-9), seed
            checked += 1
    assert checked > len(_SEEDS)


def _alone(draft: Draft) -> list[list[int]]:
    """Return slots that have one type, and are all of their nodes that have a choice.

    Reads of a ref variable, and on several devices, are cast one by one, but priced
    together.
    """
    one_place = len({node.device for node in draft.view.nodes}) == 1
    if draft.prices is None or draft.reads.refs.late or not one_place:
        return []
    groups: dict[int, list[int]] = {}
    variables = draft.constraints.variables
    for slot, variable in variables.items():
        groups.setdefault(variable, []).append(slot)
    node_of, slots_of = draft.slots.node_of, draft.slots.slots_of
    return [
        group
        for variable, group in groups.items()
        if all(
            variables.get(each, variable) == variable
            for slot in group
            for each in slots_of[node_of[slot]]
        )
    ]


def _flipped(draft: Draft, slots: list[int]) -> Draft:
    low = list(draft.low)
    for slot in slots:
        low[slot] = not low[slot]
    draft = dataclasses.replace(draft, low=tuple(low))
    return dataclasses.replace(draft, casts=plan_casts(draft))
