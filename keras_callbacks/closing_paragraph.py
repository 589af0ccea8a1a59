"""What is said at the end of a `fit` in mixed precision.

Only what was measured is called so; else the gain is a prediction.
"""

from __future__ import annotations

from grappler_pass.planning.plan import Cause, Plan
from keras_callbacks.running_fit.plan_watch import PlanWatch, WatchedPlan
from keras_callbacks.running_fit.scale_readings import ScaleReading
from keras_callbacks.running_fit.step_comparison import Comparison

_MILLI = 1e3
_WHAT = {"train": "Training", "test": "Validation", "predict": "Prediction"}


def paragraph(
    watch: PlanWatch,
    scale: ScaleReading,
    comparison: Comparison | None,
    steps_per_call: int = 1,
) -> str:
    """Return one paragraph: converted share, gain, skipped steps.

    The scale is that at the end; one run of a graph takes so many steps.
    """
    per = "step" if steps_per_call == 1 else "call"
    sentences = [_converted(role, watch.of_role(role), per) for role in _WHAT]
    sentences = list(filter(None, sentences))
    if not sentences:
        sentences = ["No graph with a matrix product or a convolution was optimized."]
    not_measured = (
        "The gain was not measured: StepTimeMonitor(compare=10) beside this callback "
        "does."
    )
    sentences.append(f"Measured: {comparison}." if comparison else not_measured)
    sentences.append(_scaled(scale))
    return "Mixed precision: " + " ".join(sentences)


def _converted(role: str, plans: list[WatchedPlan], per: str) -> str:
    if not plans:
        return ""
    # A batch of another size, or a metric, may have a graph of its own.
    largest = max(plans, key=lambda watched: watched.plan.seconds_before)
    plan = largest.plan
    if not largest.is_applied:
        return f"{_WHAT[role]} stays float32: {_why_not(plan)}."
    low = [row.seconds_float32 for row in plan.decisions if row.is_low]
    # Of the predicted float32 step.
    share = sum(low) / (sum(row.seconds_float32 for row in plan.decisions) or 1.0)
    return (
        f"{_WHAT[role]} has {len(low)} of {len(plan.decisions)} float type attributes "
        f"({share:.0%} of the time) in {plan.low_dtype}; predicted "
        f"{plan.seconds_before * _MILLI:.3g} -> {plan.seconds_after * _MILLI:.3g} ms "
        f"per {per} ({plan.speedup_text})."
    )


def _why_not(plan: Plan) -> str:
    """Return why a whole plan was not applied."""
    causes = {row.reason.cause for row in plan.decisions}
    whole = (
        Cause.TRIAL,
        Cause.DOUBT,
        Cause.LEVEL,
        Cause.MARGIN,
        Cause.KERNEL_STATE,
    )
    found = [cause.value for cause in whole if cause in causes]
    return found[0] if found else "no conversion was predicted to pay"


def _scaled(scale: ScaleReading) -> str:
    if scale.is_own:
        return (
            f"The optimizer scales losses itself, by {scale.loss_scale:g} at the end."
        )
    if scale.loss_scale == 1.0 and not scale.skipped_here:
        return "Losses were not scaled, no step was skipped."
    count = scale.skipped_here
    steps = f"{count or 'no'} step{'' if count == 1 else 's'}"
    return f"The loss scale ends at {scale.loss_scale:g}; {steps} skipped."
