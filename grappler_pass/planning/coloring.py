"""Color the slots: the minimum cut at O1, what is eligible where forced.

A plan must gain a share of the step, and more than the errors of its prices leave
uncertain. One that may do so is colored, too, where steps of the program can tell
(`trying`); any other is not applied at all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

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
from grappler_pass.planning.uncertainty import gain_error

# A gain that is so many times its error beyond so large a share of the step is certain
# if its prices are of this very device, calibrated or learned. Predicted gains are off
# by less than that (`python -m benchmarks.prediction`), and a step in float32 for
# comparison costs a short job more than it can win back.
_CERTAIN_ERRORS, _CERTAIN_SHARE = 2.0, 0.1

# Lists of tensors are no part of it: what is kept in them for the backward pass takes
# half the memory in 16 bits.
_MOVING = VIEW_OPS | GATHER | {op for op in MOVEMENT if not op.startswith("Tensor")}


def color_slots(draft: Draft) -> Draft:
    """Color the slots; remember why an eligible one was left in float32."""
    settings = draft.settings
    count = len(draft.slots.slots)
    nothing = dataclasses.replace(
        draft, low=(False,) * count, fallback=(Cause.COST,) * count
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
    if forced:
        low = list(_forced_colors(draft, variables, problem))
    else:
        low = list(minimum_cut(problem_from_prices(draft, variables, settings.tie)))
    causes = dict.fromkeys(variables.of_slots(draft.written_slots), Cause.WRITTEN)
    for variable in causes:
        low[variable] = False
    for variable in islands(problem, low, variables.of_slots(draft.constraints.allow)):
        low[variable] = False
        causes.setdefault(variable, Cause.ISLAND)
    gain, error = _gain(draft, variables, problem, low)
    colors = variables.spread(low)
    whole = sum(draft.prices.float32)
    least = settings.margin * whole
    is_sure = forced or gain >= max(least, error)
    may_be_tried = (
        settings.own_steps is not None and gain > 0.0 and gain + error >= least
    )
    if not is_sure and not may_be_tried:
        spared = tuple(Cause.MARGIN if is_low else Cause.COST for is_low in colors)
        return dataclasses.replace(nothing, fallback=spared)
    return dataclasses.replace(
        draft,
        low=colors,
        fallback=tuple(causes.get(v, Cause.COST) for v in variables.of_slot),
        gain_error=error,
        is_sure=is_sure,
        is_certain=gain - _CERTAIN_ERRORS * error >= max(least, _CERTAIN_SHARE * whole)
        and _is_priced_here(draft, colors),
    )


def _is_priced_here(draft: Draft, colors: Sequence[bool]) -> bool:
    """Return whether nearly all that is low is priced by figures of this device."""
    models, prices, nodes = draft.settings.models, draft.prices, draft.view.nodes
    low_nodes = {draft.slots.node_of[s] for s, is_low in enumerate(colors) if is_low}
    elsewhere = sum(
        prices.float32[i]
        for i in low_nodes
        if prices.sources[i] != "learned"
        and models.get(nodes[i].device_type, models["CPU"]).profile.device is None
    )
    return elsewhere <= _CERTAIN_SHARE * sum(prices.float32[i] for i in low_nodes)


def _gain(
    draft: Draft, variables: Variables, problem: Problem, low: Sequence[bool]
) -> tuple[float, float]:
    """Return the seconds per step that an assignment gains, and their error."""
    gain = problem.seconds([False] * variables.count) - problem.seconds(low)
    priced = priced_nodes(draft, variables)
    low_nodes = (node for node, variable, _, _ in priced if low[variable])
    casts = ((cast_seconds(term, low), term) for term in problem.casts)
    return gain, gain_error(draft.view, draft.prices, low_nodes, casts)


def _forced_colors(
    draft: Draft, variables: Variables, problem: Problem
) -> tuple[bool, ...]:
    """Return for every variable whether it is low: all but what makes casts smaller.

      exp(f32) --> slice(low) --> matmul(low)     casts all that the slice reads
      exp(f32) --> slice(f32) --> matmul(low)     casts what is left of it

    Values are rounded and moved in either order, so that results are the same. This is
    the cheapest assignment in which whatever computes is low: the level does not ask
    what that costs. Data movement counts as no slower in 16 bits than in float32, so
    that it is low unless that saves on casts.
    """
    computing = {
        variable
        for slot, variable in enumerate(variables.of_slot)
        if draft.view.nodes[draft.slots.node_of[slot]].op not in _MOVING
    }
    float32 = [math.inf if v in computing else 0.0 for v in range(variables.count)]
    for _, variable, seconds, low in priced_nodes(draft, variables):
        float32[variable] += max(0.0, seconds - low)
    movement = Problem(float32, [0.0] * variables.count, problem.casts)
    return minimum_cut(movement, low_at_ties=True)
