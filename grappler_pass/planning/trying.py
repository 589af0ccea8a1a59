"""What is known of a graph beside its prices: earlier runs, and its own steps.

A training that is to go on as if it had never stopped keeps the plan that it began
with: prices change from run to run, and with them plans.

Whether the rewritten graph is the one to run is decided last. What is known of it from
earlier runs counts first. Where that is in doubt the program's own steps are compared.
Until then, and where they cannot be, a plan is applied if its gain is sure by its
prices alone (`uncertainty`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

from absl import logging

from grappler_pass.planning.casts import CastPlan
from grappler_pass.planning.cut_problem import Variables
from grappler_pass.planning.decisions import plan_from_draft
from grappler_pass.planning.draft import PRICED, Draft, NodePrices, Outcome, Trial
from grappler_pass.planning.plan import Cause, Reason


class UnaskedSteps:
    """Own steps that are not asked: they may yet find any plan faster."""

    def outcome(self, trial: Trial, decided: Callable[[bool], None]) -> Outcome:
        """Return that they are not."""
        return Outcome.UNASKED


def recall(draft: Draft) -> Draft:
    """Look the graph up; where prices decide nothing there is nothing to look up."""
    memory = draft.memory
    low = None if memory is None else memory.recall(draft)
    if low is None:
        return draft
    if not _fits(draft, low):
        logging.log_first_n(
            logging.WARNING,
            "The plan stored for graph %r does not fit it; it is planned anew.",
            1,
            draft.name,
        )
        return draft
    return dataclasses.replace(draft, recalled=low)


def keep(draft: Draft) -> Draft:
    """Have it remembered how a graph came out, where its costs decide."""
    if draft.memory is not None:
        draft.memory.keep(draft)
    return draft


def _fits(draft: Draft, low: Sequence[bool]) -> bool:
    """Return whether only eligible slots are low, and tied ones alike."""
    of_slot = Variables.from_constraints(draft.constraints).of_slot
    if len(of_slot) != len(low) or any(low[slot] for slot in draft.written_slots):
        return False
    colors: dict[int, bool] = {}
    return all(
        colors.setdefault(variable, is_low) == is_low if variable >= 0 else not is_low
        for variable, is_low in zip(of_slot, low, strict=True)
    )


def tried(draft: Draft) -> Draft:
    """Withdraw a plan whose graph is not known, or predicted, to be faster."""
    own_steps = draft.settings.own_steps
    if own_steps is None or draft.settings.opt_level != PRICED:
        return draft
    if draft.rewritten is draft.given or draft.recalled is not None:
        return draft
    decided = functools.partial(_keep_decided, draft)
    outcome = own_steps.outcome(trial_from_draft(draft), decided)
    match outcome:
        case Outcome.SLOWER:
            draft = withdrawn(draft, Cause.TRIAL)
        case Outcome.OPEN:
            draft = dataclasses.replace(draft, is_open=True)
        case Outcome.WITHHELD:
            draft = withdrawn(draft, Cause.DOUBT)
            draft = dataclasses.replace(draft, is_open=True)
        case Outcome.KERNEL_STATE if not draft.is_sure:
            draft = withdrawn(draft, Cause.KERNEL_STATE)
        case Outcome.UNKNOWN if not draft.is_sure:
            draft = withdrawn(draft, Cause.MARGIN)
        case Outcome.UNKNOWN if draft.is_certain:
            return draft
    plan = dataclasses.replace(draft.plan, outcome=outcome.value)
    return dataclasses.replace(draft, plan=plan)


def _keep_decided(draft: Draft, is_faster: bool) -> None:
    """Have remembered how a graph has come out in the end."""
    keep(draft if is_faster else withdrawn(draft, Cause.TRIAL))


def trial_from_draft(draft: Draft) -> Trial:
    """Return the graphs of a draft that has passed all stages before this one."""
    plan = draft.plan
    return Trial(
        before=draft.given,
        after=draft.rewritten,
        item=draft.item,
        shapes=draft.shapes,
        seconds_before=plan.seconds_before,
        seconds_after=plan.seconds_after,
        name=draft.name,
        peak_bytes=max(plan.peak_bytes_before, plan.peak_bytes_after),
        is_certain=draft.is_certain,
        is_sure=draft.is_sure,
        prices=dict(_expected_prices(draft)),
    )


def _expected_prices(draft: Draft) -> Iterator[tuple[str, NodePrices]]:
    """Yield what the profile predicts of the nodes in 16 bits, by "name:op".

    Of what a compiler fuses, nothing is known node by node.
    """
    settings = draft.settings
    for i in sorted(() if settings.fuses else draft.low_nodes):
        node, call = draft.view.nodes[i], draft.prices.calls[i]
        if call is None:
            continue
        model = settings.models.get(node.device_type) or settings.models["CPU"]
        float32 = model.expected(call, "float32")
        low = model.expected(call, settings.low_dtype)
        if float32 is not None and low is not None:
            yield f"{node.name}:{node.op}", NodePrices(node.device_type, float32, low)


def withdrawn(draft: Draft, reason: Cause) -> Draft:
    """Return the draft with everything in float32 and the graph as it was given."""
    fallback = tuple(
        reason if is_low else cause
        for is_low, cause in zip(draft.low, draft.fallback, strict=True)
    )
    declined = (
        dataclasses.replace(each, reason=Reason(reason)) for each in draft.fusions
    )
    draft = dataclasses.replace(
        draft,
        low=(False,) * len(draft.low),
        fallback=fallback,
        gain_error=0.0,
        casts=CastPlan(),
        rewritten=draft.given,
        fusions=(),
        declined_fusions=(*draft.declined_fusions, *declined),
    )
    return dataclasses.replace(draft, plan=plan_from_draft(draft))
