"""Color the slots: the minimum cut at O1, what is eligible where forced.

A plan whose gain is sure is colored, and one whose gain may be worth it where steps of
the program can tell (`trying`); any other is not applied at all (`uncertainty`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

from grappler_pass.costs.errors import KINDRED
from grappler_pass.costs.work.op_classes import GATHER, MOVEMENT
from grappler_pass.graph.op_table import VIEW_OPS
from grappler_pass.planning.assignment import (
    Problem,
    cast_seconds,
    islands,
    minimum_cut,
)
from grappler_pass.planning.cut_problem import (
    Variables,
    priced_nodes,
    problem_from_prices,
)
from grappler_pass.planning.draft import FORCED, PRICED, Draft
from grappler_pass.planning.plan import Cause
from grappler_pass.planning.uncertainty import CERTAIN_SHARE, Gain, gain_error

# Lists of tensors are no part of it: what is kept in them for the backward pass takes
# half the memory in 16 bits.
_MOVING = VIEW_OPS | GATHER | {op for op in MOVEMENT if not op.startswith("Tensor")}


def color_slots(draft: Draft) -> Draft:
    """Color the slots; remember why an eligible one was left in float32."""
    settings = draft.settings
    count = len(draft.slots.slots)
    nothing = dataclasses.replace(
        draft, low=(False,) * count, fallback=(Cause.ISLAND,) * count
    )
    if not draft.has_candidates:
        return nothing
    if draft.recalled is not None:
        resumed = (Cause.RESUMED,) * count
        return dataclasses.replace(draft, low=draft.recalled, fallback=resumed)
    if settings.opt_level not in (PRICED, *FORCED):
        return dataclasses.replace(nothing, fallback=(Cause.LEVEL,) * count)
    variables = Variables.from_constraints(draft.constraints)
    problem = problem_from_prices(draft, variables)
    forced = settings.opt_level in FORCED
    low, causes = _colors(draft, variables, problem)
    gain = _gain(draft, variables, problem, low)
    colors = variables.spread(low)
    is_sure = forced or gain.is_sure(settings.margin)
    may_be_tried = settings.own_steps is not None and gain.may_be_worth_it
    if not is_sure and not may_be_tried:
        causes |= {v: Cause.MARGIN for v, is_low in enumerate(low) if is_low}
    fallback = tuple(causes.get(v, Cause.COST) for v in variables.of_slot)
    if not is_sure and not may_be_tried:
        return dataclasses.replace(nothing, fallback=fallback)
    return dataclasses.replace(
        draft,
        low=colors,
        fallback=fallback,
        gain_error=gain.error,
        is_sure=is_sure,
        is_certain=gain.is_certain and _is_priced_here(draft, colors),
    )


def _colors(
    draft: Draft, variables: Variables, problem: Problem
) -> tuple[tuple[bool, ...], dict[int, Cause]]:
    """Return which variables are low, and why some had no choice.

    What is kept in float32 after a cut changes what its neighbors cost, so that it is
    cut again.
    """
    if draft.settings.opt_level in FORCED:
        wanted = _forced_problem(draft, variables, problem)
    else:
        wanted = problem_from_prices(draft, variables, draft.settings.tie)
    allowed = variables.of_slots(draft.constraints.allow)
    causes = dict.fromkeys(variables.of_slots(draft.written_slots), Cause.WRITTEN)
    while True:
        low = _cut(wanted, causes, low_at_ties=draft.settings.opt_level in FORCED)
        found = islands(problem, low, allowed)
        if not found:
            return low, causes
        causes |= dict.fromkeys(found, Cause.ISLAND)


def _cut(
    problem: Problem, float32: Collection[int], *, low_at_ties: bool
) -> tuple[bool, ...]:
    """Return the minimum cut in which some variables are float32."""
    costs = zip(problem.float32_seconds, problem.low_seconds, strict=True)
    sides = [(0.0, math.inf) if v in float32 else both for v, both in enumerate(costs)]
    float32_seconds, low_seconds = zip(*sides, strict=True)
    pinned = Problem(float32_seconds, low_seconds, problem.casts)
    return minimum_cut(pinned, low_at_ties=low_at_ties)


def _is_priced_here(draft: Draft, colors: Sequence[bool]) -> bool:
    """Return whether nearly all that is low is priced by figures of this device."""
    seconds = draft.prices.float32
    low_nodes = {draft.slots.node_of[s] for s, is_low in enumerate(colors) if is_low}
    elsewhere = sum(seconds[i] for i in low_nodes if not _has_own_figures(draft, i))
    return elsewhere <= CERTAIN_SHARE * sum(seconds[i] for i in low_nodes)


def _has_own_figures(draft: Draft, node: int) -> bool:
    """Return whether a node's price is of this device, and near what was measured."""
    models, prices = draft.settings.models, draft.prices
    model = models.get(draft.view.nodes[node].device_type) or models["CPU"]
    is_own = prices.sources[node] == "learned" or model.profile.device is not None
    return is_own and max(prices.errors[node]) <= KINDRED


def _gain(
    draft: Draft, variables: Variables, problem: Problem, low: Sequence[bool]
) -> Gain:
    """Return what an assignment gains per step."""
    seconds = problem.seconds([False] * variables.count) - problem.seconds(low)
    priced = priced_nodes(draft, variables)
    low_nodes = (node for node, variable, _, _ in priced if low[variable])
    casts = ((cast_seconds(term, low), term) for term in problem.casts)
    error = gain_error(draft.view, draft.prices, low_nodes, casts)
    return Gain(seconds, error, draft.beside_nodes + sum(draft.prices.float32))


def _forced_problem(draft: Draft, variables: Variables, problem: Problem) -> Problem:
    """Return a problem whose minimum cut is low but for what makes casts smaller.

      exp(f32) --> slice(low) --> matmul(low)     casts all that the slice reads
      exp(f32) --> slice(f32) --> matmul(low)     casts what is left of it

    Values are rounded and moved in either order, so that results are the same. What
    computes is low: the level does not ask what that costs. Data movement counts as no
    slower in 16 bits than in float32, so that it is low unless that saves on casts.
    """
    computing = {
        variable
        for slot, variable in enumerate(variables.of_slot)
        if draft.view.nodes[draft.slots.node_of[slot]].op not in _MOVING
    }
    float32 = [math.inf if v in computing else 0.0 for v in range(variables.count)]
    for _, variable, seconds, low in priced_nodes(draft, variables):
        float32[variable] += max(0.0, seconds - low)
    return Problem(float32, [0.0] * variables.count, problem.casts)
