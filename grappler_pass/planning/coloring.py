"""Color the slots: the minimum cut at O1, what is eligible where forced.

A plan must gain a share of the step, and more than the errors of its prices leave
uncertain. One that may do so is colored, too, where steps of the program can tell
(`trying`); any other is not applied at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from grappler_pass.planning.assignment import (
    FLOAT32_SIDE,
    Problem,
    cast_seconds,
    islands,
    minimum_cut,
)
from grappler_pass.planning.confidence import gain_error
from grappler_pass.planning.cut_problem import (
    Variables,
    problem_from_prices,
    variables_of_nodes,
)
from grappler_pass.planning.draft import FORCED, PRICED, Draft
from grappler_pass.planning.movement import forced_colors
from grappler_pass.planning.plan import Cause
from grappler_pass.planning.recalling import color_as_recalled

# A gain that is so many times its error beyond so large a share of the step is certain.
# Predicted gains are off by less than that (`python -m benchmarks.prediction`), and a
# step in float32 for comparison costs a short job more than it can win back.
_CERTAIN_ERRORS, _CERTAIN_SHARE = 2.0, 0.1


def color_slots(draft: Draft) -> Draft:
    """Color the slots; remember why an eligible one was left in float32."""
    count = len(draft.slots.slots)
    nothing = dataclasses.replace(
        draft, low=(False,) * count, fallback=(Cause.COST,) * count
    )
    settings = draft.settings
    if not draft.has_candidates:
        return nothing
    if draft.recalled is not None:
        return color_as_recalled(draft, draft.recalled)
    if settings.opt_level not in (PRICED, *FORCED):
        return dataclasses.replace(nothing, fallback=(Cause.LEVEL,) * count)
    variables = Variables.from_constraints(draft.constraints)
    priced = (draft.view, draft.slots, variables, draft.prices, draft.reads)
    problem = problem_from_prices(*priced)
    forced = settings.opt_level in FORCED
    if forced:
        low = list(forced_colors(draft, variables, problem))
    else:
        low = list(minimum_cut(problem_from_prices(*priced, settings.tie)))
    written = {variables.of_slot[s] for s in draft.written_slots} - {FLOAT32_SIDE}
    for variable in written:
        low[variable] = False
    anchors = {variables.of_slot[s] for s in draft.constraints.allow} - {FLOAT32_SIDE}
    returned = islands(problem, low, anchors)
    for variable in returned:
        low[variable] = False
    gain = problem.seconds([False] * variables.count) - problem.seconds(low)
    error = _gain_error(draft, variables, problem, low)
    whole = sum(draft.prices.float32)
    least = settings.margin * whole
    is_sure = forced or gain >= max(least, error)
    is_certain = gain - _CERTAIN_ERRORS * error >= max(least, _CERTAIN_SHARE * whole)
    may_be_tried = settings.tuner is not None and gain > 0.0 and gain + error >= least
    if not is_sure and not may_be_tried:
        spared = {v for v, is_low in enumerate(low) if is_low}
        fallback = _fallback(variables, dict.fromkeys(spared, Cause.MARGIN))
        return dataclasses.replace(nothing, fallback=fallback)
    causes = dict.fromkeys(returned, Cause.ISLAND) | dict.fromkeys(
        written, Cause.WRITTEN
    )
    fallback = _fallback(variables, causes)
    return dataclasses.replace(
        draft,
        low=variables.spread(low),
        fallback=fallback,
        gain_error=error,
        is_sure=is_sure,
        is_certain=is_certain,
    )


def _gain_error(
    draft: Draft, variables: Variables, problem: Problem, low: Sequence[bool]
) -> float:
    """Return how far the gain of an assignment may be off, in seconds per step."""
    of_node = variables_of_nodes(draft.slots, variables, draft.prices)
    low_nodes = (node for node, variable in of_node.items() if low[variable])
    casts = ((cast_seconds(term, low), term) for term in problem.casts)
    return gain_error(draft.view, draft.prices, low_nodes, casts)


def _fallback(
    variables: Variables, causes: Mapping[int, Cause]
) -> tuple[Cause | None, ...]:
    """Return the causes of the slots of some variables, COST for the others."""
    return tuple(causes.get(v, Cause.COST) for v in variables.of_slot)
