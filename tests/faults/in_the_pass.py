"""Faults in the pass: `grappler_pass`, and what of `tf_amp` hands graphs to it."""

from __future__ import annotations

from tests.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    Fault(
        "A cast to float32 is left out.",
        "grappler_pass/planning/casts.py",
        "            needed = low_dtype if reads_low else FLOAT32\n",
        "            needed = low_dtype if reads_low else FLOAT32\n"
        "            if needed == FLOAT32 and not is_cast(node):\n"
        "                continue\n",
        ("tests/grappler_pass/rewriting/test_patterns_coloring.py",),
    ),
)
