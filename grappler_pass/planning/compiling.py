"""Say where starting operations one by one bounds a step, and what XLA would take."""

from __future__ import annotations

from grappler_pass.costs.model import compiled_models
from grappler_pass.planning.compiled_prices import KernelPricer
from grappler_pass.planning.draft import Draft

# From what on it is worth a word that a CPU starts operations instead of computing, by
# the time that this takes, and by its share of a step.
_LEAST_STARTS_SECONDS, _STARTS_SHARE = 5e-4, 0.5


def host_bound(draft: Draft) -> str:
    """Say so where starting ops bounds a step, and what XLA would take for it."""
    if draft.prices is None or draft.settings.fuses:
        return ""
    step, starts = draft.float32_seconds, draft.prices.executor
    if draft.is_host_bound:
        bound, at_most = _bound_of_gpu(draft), _seconds_of_kernels(draft)
    elif starts >= max(_LEAST_STARTS_SECONDS, _STARTS_SHARE * step):
        bound = (
            f"starting the operations takes {starts / step:.0%} of a step in float32"
        )
        at_most = step - starts
    else:
        return ""
    return (
        f"{bound}; compiled by XLA (jit_compile=True) a step is expected to take at "
        f"most {1e3 * at_most:.3g} ms; another way is TF_AMP_COMPILE=clusters "
        "(docs/compile.md)"
    )


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
