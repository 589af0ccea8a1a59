"""Write down what was decided, and whether the rewritten graph is the one to run.

A plan has one row per slot, with reason and cost terms.

A training that is to go on as if it had never stopped keeps the plan that it began
with: prices change from run to run, and with them plans.

Whether the rewritten graph is the one to run is decided last. What is known of it from
earlier runs counts first. Where that is uncertain the program's own steps are compared.
Until then, and where they cannot be, a plan is applied if its gain is sure by its
prices alone (`coloring.Gain`).
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable

from absl import logging
from tensorflow.core.framework.types_pb2 import DT_RESOURCE

from grappler_pass.costs.calls import (
    UNKNOWN_BATCH,
    UNKNOWN_DIMENSION,
)
from grappler_pass.graph.op_table import INPUT_OPS
from grappler_pass.graph.shapes import Shape, known_shape
from grappler_pass.graph.type_slots import (
    DTYPE_NAMES,
    FLOAT32,
)
from grappler_pass.graph.view import Port
from grappler_pass.planning.coloring import problem_from_prices
from grappler_pass.planning.compiling import with_compiled_step
from grappler_pass.planning.cut import FLOAT32_SIDE, seconds_of_flips
from grappler_pass.planning.draft import (
    FORCED,
    PRICED,
    CastPlan,
    Draft,
    NodePrices,
    Outcome,
    Trial,
)
from grappler_pass.planning.plan import Cause, Decision, Plan, Reason, shape_text
from grappler_pass.planning.prices import CastPrice


def plan_from_draft(draft: Draft) -> Plan:
    """Return the plan of a draft whose slots are colored and casts are planned."""
    settings, prices, casts = draft.settings, draft.prices, draft.casts
    # Each cast is charged to the low node that it is made for: to the first reader on
    # the way down, to the producer on the way up.
    cast_seconds: defaultdict[int, float] = defaultdict(float)
    for conversion in (each for each in casts.conversions if each.is_cast):
        price = prices.casts.get(conversion.port, CastPrice())
        if conversion.target_dtype == FLOAT32:
            cast_seconds[conversion.port.node] += price.up
        else:
            cast_seconds[conversion.readers[0].node] += price.down
    call_seconds = seconds_before = seconds_after = 0.0
    if prices is not None:
        call_seconds = settings.models["CPU"].profile.call_seconds
        low_nodes = draft.low_nodes
        seconds_before = draft.step_seconds(sum(prices.float32))
        device_after = sum(
            (low if node in low_nodes and low is not None else float32)
            + cast_seconds[node]
            for node, (float32, low) in enumerate(
                zip(prices.float32, prices.low, strict=True)
            )
        )
        weight = draft.view.weight
        made = (c.source.node for c in casts.conversions if c.is_cast)
        starts = sum(map(weight, made)) - sum(map(weight, casts.absorbed))
        seconds_after = draft.step_seconds(device_after, starts)
    # What its other type alone would take a variable more, with casts.
    variables, more = draft.constraints.variables, list[float]()
    if variables:
        colors = {variable: draft.low[slot] for slot, variable in variables.items()}
        more = seconds_of_flips(
            problem_from_prices(draft), [colors[v] for v in range(len(colors))]
        )
    others = {slot: more[variable] for slot, variable in variables.items()}
    # Of the devices that its nodes with types to choose run on.
    kinds = {n.device_type for n in draft.view.nodes if draft.slots.slots_of[n.index]}
    models = (settings.models.get(kind) for kind in sorted(kinds))
    notes = dict.fromkeys(model.profile.note for model in models if model)
    plan = Plan(
        decisions=tuple(
            _decision(draft, slot, cast_seconds, others.get(slot))
            for slot in range(len(draft.slots.slots))
        ),
        low_dtype=settings.low_dtype,
        opt_level=settings.opt_level,
        graph=draft.name,
        profile=", ".join(sorted({m.profile.name for m in settings.models.values()})),
        seconds_before=seconds_before + sum(f.seconds for f in draft.fusions),
        seconds_after=seconds_after,
        call_seconds=call_seconds,
        # A low product whose results are float32 is cast up within its node.
        casts=sum(c.is_cast for c in casts.conversions)
        + sum(map(draft.slots.has_float32_results, draft.low_nodes)),
        casts_removed=len(casts.absorbed)
        + sum(c.is_identity for c in casts.conversions),
        gain_error=draft.gain_error,
        low_speedup=draft.low_speedup,
        fusions=draft.fusions,
        traced_fusions=draft.traced_fusions,
        declined_fusions=draft.declined_fusions,
        guessed=" ".join(filter(None, (_guessed_sizes(draft), *notes))),
    )
    return with_compiled_step(draft, plan)


def _guessed_sizes(draft: Draft) -> str:
    """Say which sizes are guesses, if a product is priced with an unknown one."""
    slots, view, shapes = draft.slots, draft.view, draft.shapes

    def is_open(shape: Shape | None) -> bool:
        return shape is None or None in shape

    products = (_shape(draft, slots.node_of[s], s) for s in draft.constraints.allow)
    if not any(map(is_open, products)):
        return ""
    names = [
        f"{node.name} {shape_text(shape)}"
        for node in view.nodes
        if node.op in INPUT_OPS and slots.output_dtype(node.index, 0) != DT_RESOURCE
        if is_open(shape := known_shape(shapes, view, Port(node.index, 0)))
    ]
    return (
        f"An unknown first size counts as {UNKNOWN_BATCH}, any other one as "
        f"{UNKNOWN_DIMENSION}: {', '.join(names) or 'within the graph'}. "
        "--batch N sets the first ones of a SavedModel's inputs, a TensorSpec those of "
        "a function's."
    )


def _decision(
    draft: Draft,
    slot: int,
    cast_seconds_of: defaultdict[int, float],
    other_seconds: float | None,
) -> Decision:
    slots, prices = draft.slots, draft.prices
    node = slots.node_of[slot]
    float32, low = 0.0, None
    if prices is not None:
        float32, low = prices.float32[node], prices.low[node]
    saved = 0.0 if low is None else float32 - low
    # A node is priced once, in the row of its first slot.
    first = slots.slots_of[node][0] == slot
    priced = prices is not None and first
    cast_seconds = cast_seconds_of[node]
    reason = draft.constraints.reasons[slot]
    if draft.constraints.eligible[slot]:
        if not draft.low[slot]:
            cause = draft.fallback[slot] or Cause.COST
            if cause is Cause.COST and saved > 0.0:
                cause = Cause.CASTS
        elif draft.recalled is not None:
            cause = Cause.RESUMED_LOW
        elif draft.settings.opt_level in FORCED:
            cause = Cause.FORCED
        elif saved > cast_seconds:
            cause = Cause.GAIN
        else:
            is_held = other_seconds is not None and other_seconds > 0.0
            cause = Cause.NEIGHBORS if is_held else Cause.MEMORY
        reason = Reason(cause, reason.detail)
    own = DTYPE_NAMES[slots.dtypes[slot]]
    return Decision(
        slot=slots.slots[slot],
        op=draft.view.nodes[node].op,
        dtype=draft.settings.low_dtype if draft.low[slot] else own,
        reason=reason,
        seconds_float32=float32 if priced else 0.0,
        seconds_low=low if priced else None,
        cast_seconds=cast_seconds if first else 0.0,
        other_seconds=other_seconds,
        shape=_shape(draft, node, slot),
        source=prices.sources[node] if priced else "",
        error=max(prices.errors[node]) if priced else 0.0,
        is_product=slot in draft.constraints.allow,
    )


def _shape(draft: Draft, node: int, slot: int) -> Shape | None:
    """Return the shape of the first output that the slot governs.

    Without one, that of the input of the highest rank: of an update, the gradient.
    """
    slots = draft.slots
    made = (Port(node, output) for output in range(slots.output_count(node)))
    for port in made:
        if slots.output_slot(*port) == slot:
            return known_shape(draft.shapes, draft.view, port)
    read = (
        known_shape(draft.shapes, draft.view, port)
        for position, port in enumerate(draft.view.nodes[node].inputs)
        if slots.input_slot(node, position) == slot
    )
    return max(read, key=lambda shape: len(shape or ()), default=None)


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
    # Only eligible slots are low, and tied ones alike.
    variables, colors = draft.constraints.variables, {FLOAT32_SIDE: False}
    if (
        len(low) != len(draft.slots.slots)
        or any(low[slot] for slot in draft.written_slots)
        or any(
            colors.setdefault(variables.get(slot, FLOAT32_SIDE), is_low) != is_low
            for slot, is_low in enumerate(low)
        )
    ):
        logging.log_first_n(
            logging.WARNING,
            "The plan stored for graph %r does not fit it; it is planned again.",
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


def tried(draft: Draft) -> Draft:
    """Withdraw a plan whose graph is not known, or predicted, to be faster."""
    own_steps = draft.settings.own_steps
    if own_steps is None or draft.settings.opt_level != PRICED:
        return draft
    if draft.rewritten is draft.given or draft.recalled is not None:
        return draft
    planned = draft

    def decided(is_faster: bool) -> None:
        """Have remembered how the graph has come out in the end."""
        keep(planned if is_faster else withdrawn(planned, Cause.TRIAL))

    outcome = own_steps.outcome(trial_from_draft(draft), decided)
    causes = {Outcome.SLOWER: Cause.TRIAL, Outcome.WITHHELD: Cause.DOUBT}
    if not draft.is_sure:
        causes[Outcome.KERNEL_STATE] = Cause.KERNEL_STATE
        causes[Outcome.UNKNOWN] = Cause.MARGIN
    if outcome in causes:
        draft = withdrawn(draft, causes[outcome])
    elif outcome is Outcome.UNKNOWN and draft.is_certain:
        return draft
    plan = dataclasses.replace(draft.plan, outcome=outcome.value)
    is_open = outcome in (Outcome.OPEN, Outcome.WITHHELD)
    return dataclasses.replace(draft, plan=plan, is_open=is_open)


def trial_from_draft(draft: Draft) -> Trial:
    """Return the graphs of a draft that has passed all stages before this one."""
    plan, settings = draft.plan, draft.settings
    prices: dict[str, NodePrices] = {}
    # Of what a compiler fuses, nothing is known node by node.
    for i in sorted(() if settings.fuses else draft.low_nodes):
        node, call = draft.view.nodes[i], draft.prices.calls[i]
        if call is None:
            continue
        model = settings.models.get(node.device_type) or settings.models["CPU"]
        float32 = model.expected(call, "float32")
        low = model.expected(call, settings.low_dtype)
        if float32 is not None and low is not None:
            key = f"{node.name}:{node.op}"
            prices[key] = NodePrices(node.device_type, float32, low)
    return Trial(
        before=draft.given,
        after=draft.rewritten,
        item=draft.item,
        shapes=draft.shapes,
        seconds_before=plan.seconds_before,
        seconds_after=plan.seconds_after,
        name=draft.name,
        added_bytes=max(plan.peak_bytes_before, plan.peak_bytes_after)
        - plan.held_bytes,
        is_certain=draft.is_certain,
        is_sure=draft.is_sure,
        prices=prices,
    )


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
    # It holds what the graph as given does.
    plan = dataclasses.replace(
        plan_from_draft(draft),
        peak_bytes_before=draft.plan.peak_bytes_before,
        peak_bytes_after=draft.plan.peak_bytes_before,
        held_bytes=draft.plan.held_bytes,
    )
    return dataclasses.replace(draft, plan=plan)
