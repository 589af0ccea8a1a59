"""The last stage: run both graphs and keep the faster.

However sure a gain is, its prices may be those of another machine; a clear gain is seen
within a few steps, once for each graph on each machine.
"""

from __future__ import annotations

import dataclasses

from grappler_pass.casts import CastPlan
from grappler_pass.decisions import plan_from_draft, seconds_by_node
from grappler_pass.draft import PRICED, Draft, Trial
from grappler_pass.plan import Cause


def tried(draft: Draft) -> Draft:
    """Withdraw a plan whose graph a trial does not find faster.

    Where a trial cannot tell, prices decide: the plan stays if its gain is larger than
    their error.
    """
    tuner = draft.settings.tuner
    if tuner is None or draft.settings.opt_level != PRICED:
        return draft
    if draft.rewritten is draft.graph_def or draft.recalled is not None:
        return draft
    faster = tuner.is_faster(trial_from_draft(draft))
    if faster is None:
        return draft if draft.is_sure else _withdrawn(draft, Cause.MARGIN)
    return draft if faster else _withdrawn(draft, Cause.TRIAL)


def trial_from_draft(draft: Draft) -> Trial:
    """Return the graphs of a draft that has passed all stages before this one."""
    plan = draft.plan
    return Trial(
        before=draft.graph_def,
        after=draft.rewritten,
        item=draft.item,
        shapes=draft.shapes,
        seconds_before=plan.seconds_before,
        seconds_after=plan.seconds_after,
        name=draft.name,
        peak_bytes=max(plan.peak_bytes_before, plan.peak_bytes_after),
        nodes=dict(zip(draft.view.index, seconds_by_node(draft), strict=True)),
        is_sure=draft.is_sure,
        low_dtype=draft.settings.low_dtype,
    )


def _withdrawn(draft: Draft, reason: Cause) -> Draft:
    """Return the draft with everything in float32 and the graph as it was given."""
    fallback = tuple(
        reason if is_low else cause
        for is_low, cause in zip(draft.low, draft.fallback, strict=True)
    )
    draft = dataclasses.replace(
        draft,
        low=(False,) * len(draft.low),
        fallback=fallback,
        gain_error=0.0,
        casts=CastPlan((), ()),
        rewritten=draft.graph_def,
    )
    return dataclasses.replace(draft, plan=plan_from_draft(draft))
