"""The rooms that are mutated, and the tests that are to notice."""

from __future__ import annotations

SEED = 20261127
ROOMS = {
    "grappler_pass/planning": ("tests/grappler_pass/planning",),
    "grappler_pass/eligibility": ("tests/grappler_pass/eligibility/test_cases.py",),
    "tf_amp/config/loss_scales": ("tests/tf_amp/config/loss_scales",),
}
