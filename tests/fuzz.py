"""Fuzz the pass with random programs: python -m tests.fuzz [N] [--start SEED].

Exit code 0 when every seed is clean.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from typing import Any

from grappler_pass.fusions import RULES
from tests.campaign import Command
from tests.fuzz_check import LOW_DTYPES, check_seed


def _check(seed: int) -> dict[str, Any]:
    outcome = dataclasses.asdict(check_seed(seed))
    return {**outcome.pop("rules"), **outcome}


def _reproduce(seed: int) -> bool:
    """Check one seed at both dtypes and show everything."""
    outcome = check_seed(seed, LOW_DTYPES)
    print(outcome)
    return not outcome.failures


def _summary(totals: Counter[str]) -> str:
    fused = ", ".join(f"{rule} {totals[rule]}" for rule in RULES)
    return (
        f"{totals['rewritten']} rewritings run, "
        f"{totals['chaotic']} programs too ill-conditioned to compare results, "
        f"fused: {fused}"
    )


COMMAND = Command("tests.fuzz", __doc__, _check, _reproduce, _summary)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
