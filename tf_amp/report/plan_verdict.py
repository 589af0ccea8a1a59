"""What a plan comes to, in sentences: how fast, in which types, how sure, what next."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from grappler_pass.costs import DeviceProfile
from grappler_pass.eligibility.reasons import Cause
from grappler_pass.planning.draft import Outcome
from grappler_pass.planning.plan import PlannedNode
from tf_amp.report.counts import counted

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan

# Of the time, from what share on 16 bits have no large obstacle.
_MOST_SHARE = 0.8
# Of the time, from what on an exclusion, starts, and updates of variables are named.
_LARGE_SHARE, _START_SHARE, _UPDATE_SHARE = 0.05, 0.3, 0.3
# Exclusions that are named.
_EXCLUSIONS = 3
# A ratio that is printed as 1.00.
_EQUAL = 0.005
# Errors beyond which two times are known to differ.
_SURE_ERRORS = 2.0
_WHY_EMPTY = {
    Cause.TRIAL: "steps have run both ways, and 16 bits were not faster",
    Cause.HOLDS_MORE: Cause.HOLDS_MORE.value,
    Cause.DOUBT: "16 bits may be no faster, which its steps are to show",
    Cause.LEVEL: "the optimization level O0 keeps everything in float32",
}


@dataclasses.dataclass(frozen=True)
class Observed:
    """What is known of a graph beside its plan.

    Attributes:
      ratio: its measured speed-up over float32; None where nothing was measured.
      error: standard error of the ratio's logarithm; 0 where that is not known.
      how: in what it was measured, such as "9 pairs of its own steps".
      is_applied: False where steps have shown that it had better stay float32.
      holds: whether its numbers hold beside float32's; None where that is not known.
      source: the script or model as a command takes it; "" where that is not known.
      is_model: whether that is a SavedModel.
    """

    ratio: float | None = None
    error: float = 0.0
    how: str = ""
    is_applied: bool = True
    holds: bool | None = None
    source: str = ""
    is_model: bool = False


def low_share(nodes: Sequence[PlannedNode]) -> float:
    """Return the share of the time of a plan's operations that is in 16 bits."""
    seconds = sum(node.seconds for node in nodes)
    low = sum(node.seconds for node in nodes if node.main.is_low)
    return low / seconds if seconds else 0.0


def verdict_of(plan: Plan, nodes: Sequence[PlannedNode], observed: Observed) -> str:
    """Return two or three sentences: the speed, the types, the numbers."""
    sentences = [_speed(plan, observed)]
    is_low = any(node.main.is_low for node in nodes)
    if is_low and observed.is_applied:
        if share := low_share(nodes):
            in_types = f"About {share:.0%} of the time is in {plan.low_dtype}."
        else:
            count = sum(node.main.is_low for node in nodes)
            in_types = f"{count} of {len(nodes)} operations are in {plan.low_dtype}."
        sentences.append(in_types)
    elif not is_low and plan.fusions and observed.is_applied:
        sentences.append("All types stay float32.")
    if not plan.is_empty and observed.is_applied:
        sentences.append(_NUMBERS[observed.holds])
    if observed.ratio is None and plan.outcome:
        sentences.append(f"{plan.outcome[0].upper()}{plan.outcome[1:]}.")
    return " ".join(sentences)


_NUMBERS = {
    None: "Its numbers are not verified yet.",
    True: "Its numbers are verified against float32.",
    False: "Its numbers differ from float32 by more than is allowed.",
}


def _speed(plan: Plan, observed: Observed) -> str:
    if observed.ratio is not None:
        return _measured(plan, observed.ratio, observed)
    if plan.is_empty:
        kept = f"Stays float32: {_why_empty(plan)}."
        if _has_fusions_alone(plan):
            gain = f"expected to make it {plan.predicted_speedup:.2f} times as fast"
            if plan.predicted_speedup - 1.0 < _EQUAL:
                gain = "not expected to make it faster"
            kept += f" Its fusions are {gain}; not measured yet."
        return kept
    if not plan.seconds_before:
        return "Its speed is not predicted: its operations have no cost estimates."
    ratio = plan.predicted_speedup
    span = plan.speedup_range
    is_known = plan.outcome == Outcome.FASTER.value
    when = "not measured in this run" if is_known else "not measured yet"
    if span.startswith("between"):
        span = f", {span}"
    elif span:
        span = ", which is a rough guess"
    if abs(ratio - 1.0) < _EQUAL:
        return f"Expected to be about as fast as float32{span}; {when}."
    if ratio < 1.0:
        return (
            f"Expected to be slower than float32: {ratio:.2f} times as fast{span}; "
            f"{when}."
        )
    return f"Expected to be {ratio:.2f} times as fast as float32{span}; {when}."


def _measured(plan: Plan, ratio: float, observed: Observed) -> str:
    float32 = plan.compared_with
    how = f"measured in {observed.how}"
    if not observed.is_applied:
        gain = "slower" if ratio < 1.0 else "no clear gain"
        return (
            f"Stays float32: with its plan it was {ratio:.2f} times as fast, {how}. "
            f"That is {gain}."
        )
    spread = _SURE_ERRORS * observed.error
    if abs(ratio - 1.0) < max(spread, _EQUAL):
        return f"About as fast as {float32}: {ratio:.2f} times, {how}."
    if ratio < 1.0:
        return f"Slower than {float32}: {ratio:.2f} times as fast, {how}."
    return f"{ratio:.2f} times as fast as {float32}, {how}{plan.in_all(ratio)}."


def _has_fusions_alone(plan: Plan) -> bool:
    """Return whether a graph is changed by what was traced, and by nothing else."""
    return plan.is_empty and bool(plan.traced_fusions)


def _why_empty(plan: Plan) -> str:
    causes = {row.reason.cause for row in plan.decisions}
    for cause, why in _WHY_EMPTY.items():
        if cause in causes:
            return why
    if not plan.decisions:
        return "no operation in it computes with floating-point numbers"
    if plan.is_forgone:
        return f"nothing in it may be in {plan.low_dtype}"
    where = f" on {plan.profile}" if plan.profile else ""
    return f"{plan.low_dtype} is not expected to be faster{where}"


def next_steps(
    plan: Plan, nodes: Sequence[PlannedNode], observed: Observed
) -> tuple[str, ...]:
    """Return what a reader may do next, a sentence or two each."""
    steps = tuple(_next_steps(plan, nodes, observed))
    if steps:
        return steps
    if _ran_both_ways(plan, observed):
        return ("Nothing: its own steps ran both ways, and float32 stays.",)
    is_done = observed.ratio is not None and observed.holds
    return (
        "Nothing: it is measured, and its numbers hold." if is_done else "Nothing.",
    )


def _ran_both_ways(plan: Plan, observed: Observed) -> bool:
    """Return whether steps have shown that float32 had better stay."""
    is_tried = any(row.reason.cause is Cause.TRIAL for row in plan.decisions)
    return is_tried or not observed.is_applied


def _next_steps(
    plan: Plan, nodes: Sequence[PlannedNode], observed: Observed
) -> Iterator[str]:
    source = observed.source or "SCRIPT"
    infer = " --mode infer" if observed.is_model else ""
    is_changed = not plan.is_empty and observed.is_applied
    # The machine that it was planned on need not be one.
    is_here = plan.profile.startswith(("cpu-", "calibrated"))
    there = "" if is_here else " on such a device"
    if is_changed and observed.ratio is None:
        yield f"Measure its speed{there}: `tf-amp bench {source}{infer}`."
    if _has_fusions_alone(plan) and observed.ratio is None:
        yield f"Measure what its fusions gain{there}: `tf-amp bench {source}{infer}`."
    if is_changed and observed.holds is None:
        yield f"Compare its numbers with float32: `tf-amp verify {source}`."
    if observed.holds is False:
        yield f"Find the operation that differs: `tf-amp verify {source} --bisect`."
    is_slower = (observed.ratio or plan.rewrite_speedup) < 1.0 - _EQUAL
    if is_changed and is_slower:
        if plan.opt_level in ("O2", "O3"):
            yield "`TF_AMP_OPT_LEVEL=O1` takes 16 bits only where they are faster."
        elif plan.profile.startswith("cpu-"):
            yield "Measure what this CPU costs, for better plans: `tf-amp calibrate`."
        else:
            yield "Keep it in float32: `TF_AMP_OPT_LEVEL=O0`."
    if not is_changed or low_share(nodes) < _MOST_SHARE:
        yield from _obstacles(plan, nodes, observed, source)
    if plan.guessed:
        yield plan.guessed
    if plan.unchecked:
        yield f"{plan.unchecked[0].upper()}{plan.unchecked[1:]}."


def _obstacles(
    plan: Plan, nodes: Sequence[PlannedNode], observed: Observed, source: str
) -> Iterator[str]:
    """Yield what is in the way of 16 bits, and what would change that."""
    total = sum(node.seconds for node in nodes)
    kept: dict[Cause, float] = defaultdict(float)
    excluded: dict[str, float] = defaultdict(float)
    for node in nodes:
        # Operations without prices count alike.
        share = node.seconds / total if total else 1 / len(nodes)
        if not node.main.is_low:
            cause, detail = node.main.reason
            kept[cause] += share
            if cause is Cause.EXCLUDED:
                excluded[detail] += share
    if kept[Cause.LEVEL]:
        yield "`TF_AMP_OPT_LEVEL=O1` takes 16 bits where they are faster."
        return
    ranked = sorted(excluded.items(), key=lambda item: -item[1])
    for name, share in ranked[:_EXCLUSIONS]:
        if share >= _LARGE_SHARE:
            yield (
                f"You exclude `{name}`, which is {share:.0%} of the time. Without that "
                "it may be in 16 bits."
            )
    if _ran_both_ways(plan, observed):
        return
    started = plan.call_seconds / plan.seconds_before if plan.seconds_before else 0.0
    if started >= _START_SHARE:
        yield (
            f"Use a larger batch: {started:.0%} of the time goes into starting the "
            "step, whatever it computes."
        )
    elif kept[Cause.STATE_UPDATE] >= _UPDATE_SHARE:
        yield (
            f"The updates of variables take {kept[Cause.STATE_UPDATE]:.0%} of the "
            "time, and stay float32. A larger batch needs fewer of them per example."
        )
    if plan.compiling:
        yield f"{plan.compiling[0].upper()}{plan.compiling[1:]}."
    if plan.host_bound:
        return
    if plan.is_empty and (kept[Cause.MARGIN] or kept[Cause.KERNEL_STATE]):
        yield (
            "The gain is too small to be sure of. Measure it with 16 bits: "
            f"`TF_AMP_OPT_LEVEL=O2 tf-amp bench {source}`."
        )
    elif plan.is_empty and kept[Cause.COST] + kept[Cause.CASTS]:
        yield _where_16_bits_pay(plan, nodes, source)
    elif plan.decisions and not kept[Cause.DOUBT]:
        is_shipped = plan.profile in DeviceProfile.names()
        device = f"--device-profile {plan.profile} " if is_shipped else ""
        command = f"tf-amp audit {device}{source}"
        yield f"See what else keeps operations in float32: `{command}`."


def _where_16_bits_pay(plan: Plan, nodes: Sequence[PlannedNode], source: str) -> str:
    """Say how long products take here in both types, and where to look for a gain."""
    rows = [node.main for node in nodes if node.main.seconds_low is not None]
    products = [row for row in rows if row.is_product] or rows
    float32, low = (
        f"{1e3 * seconds:.3g} ms"
        for seconds in (
            sum(row.seconds_float32 for row in products),
            sum((row.seconds_low or 0.0) + row.cast_seconds for row in products),
        )
    )
    times = (
        f"On {plan.profile or 'this device'}, its products take {low} in "
        f"{plan.low_dtype} and {float32} in float32."
    )
    if plan.profile in DeviceProfile.names():
        rates = DeviceProfile.load(plan.profile).roofline.matrix_flops
        if rates.get(plan.low_dtype, 0.0) > rates["float32"]:
            return f"{times} Larger batches and wider layers gain more from 16 bits."
    return (
        f"{times} See what it gains on a CPU with AMX: `tf-amp audit --device-profile "
        f"cpu-amx-bf16 {source}`. That takes names of GPUs, too, such as h100."
    )


def operations_in_words(plan: Plan, nodes: Sequence[PlannedNode]) -> str:
    """Return how many operations are in 16 bits, and the casts that takes."""
    low = sum(node.main.is_low for node in nodes)
    text = f"{low} of {counted(len(nodes), 'operation')}"
    if plan.casts or plan.casts_removed:
        text += f"; {counted(plan.casts, 'cast')} added"
        text += f", {plan.casts_removed} removed" if plan.casts_removed else ""
    return text
