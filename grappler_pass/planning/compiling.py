"""Say where starting operations one by one bounds a step, and what XLA would take."""

from __future__ import annotations

import dataclasses

from grappler_pass.costs.model import compiled_models
from grappler_pass.planning.compiled_prices import KernelPricer
from grappler_pass.planning.draft import Draft
from grappler_pass.planning.plan import Plan

# From what on it is worth a word that a CPU starts operations instead of computing, by
# the time that this takes, and by its share of a step.
_LEAST_STARTS_SECONDS, _STARTS_SHARE = 5e-4, 0.5
# From how many times the seconds of XLA's kernels on.
_WORTH = 1.25


def with_compiled_step(draft: Draft, plan: Plan) -> Plan:
    """Return a plan that says where compiling by XLA is worth trying.

    Where starting ops bounds a step, and on GPUs where XLA's kernels take much less.
    """
    if draft.prices is None or draft.settings.fuses:
        return plan
    step, starts = draft.float32_seconds, draft.prices.executor
    bound = ""
    if draft.prices.host:
        at_most = _seconds_of_kernels(draft)
        if draft.is_host_bound:
            bound = _bound_of_gpu(draft)
        elif plan.seconds_after < _WORTH * at_most:
            return plan
    elif starts >= max(_LEAST_STARTS_SECONDS, _STARTS_SHARE * step):
        bound = (
            f"starting the operations takes {starts / step:.0%} of a step in float32"
        )
        at_most = step - starts
    else:
        return plan
    compiled_step = (
        "compiled by XLA (jit_compile=True) a step is expected to take at most "
        f"{1e3 * at_most:.3g} ms; another way is TF_AMP_COMPILE=clusters "
        "(docs/compile.md)"
    )
    return dataclasses.replace(plan, host_bound=bound, compiled_step=compiled_step)


def _bound_of_gpu(draft: Draft) -> str:
    prices = draft.prices
    seconds = (prices.host, sum(prices.float32), draft.least_device_seconds)
    host, float32, low = (f"{1e3 * each:.3g} ms" for each in seconds)
    return (
        f"the host takes {host} to start the operations, which the GPU runs in "
        f"{float32} in float32 and in {low} with {draft.settings.low_dtype}"
    )


def _seconds_of_kernels(draft: Draft) -> float:
    """Return what a step takes on a GPU in the kernels that XLA makes for it."""
    models = compiled_models(draft.settings.models)
    low_dtype = draft.settings.low_dtype
    compiled = KernelPricer(
        draft.view, draft.slots, draft.shapes, models, low_dtype, draft.reads
    )
    return sum(compiled.prices([False] * len(draft.slots.slots)).float32)
