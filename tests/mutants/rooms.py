"""The rooms that are mutated, and the tests that are to notice."""

from __future__ import annotations

SEED = 20261127
ROOMS = {
    "grappler_pass/planning": ("tests/grappler_pass/planning",),
    "grappler_pass/eligibility": (
        "tests/grappler_pass/eligibility/numerics",
        "tests/grappler_pass/eligibility/test_propagation.py",
        "tests/grappler_pass/eligibility/test_propagation_ties.py",
    ),
    "tf_amp/config/loss_scales": ("tests/tf_amp/config/loss_scales",),
}
