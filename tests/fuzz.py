"""Fuzz the pass with random programs: python -m tests.fuzz [N] [--start SEED].

Exit code 0 when every seed is clean.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from typing import Any

from grappler_pass.fusions import RULES
from tests import saving
from tests.campaign import Command
from tests.fuzz_check import LOW_DTYPES, check_seed


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    words = saving.words_of(arguments)
    command = Command(
        "tests.fuzz",
        __doc__ or "",
        functools.partial(_check, saves_memory=bool(words)),
        functools.partial(_reproduce, saves_memory=bool(words)),
        _summary,
        own_options=(saving.OPTION,),
        passed=words,
    )
    return command.run(arguments)


def _check(seed: int, *, saves_memory: bool) -> dict[str, Any]:
    with saving.share_of(seed):
        outcome = dataclasses.asdict(check_seed(seed, saves_memory=saves_memory))
    return {**outcome.pop("rules"), **outcome}


def _reproduce(seed: int, *, saves_memory: bool) -> bool:
    """Check one seed at both dtypes and show everything."""
    with saving.share_of(seed):
        outcome = check_seed(seed, LOW_DTYPES, saves_memory=saves_memory)
    print(outcome)
    return not outcome.failures


def _summary(totals: Counter[str]) -> str:
    fused = ", ".join(f"{rule} {totals[rule]}" for rule in RULES)
    return (
        f"{totals['rewritten']} rewritings run, "
        f"{totals['chaotic']} programs too ill-conditioned to compare results, "
        f"run again to hold less: {totals['again']}, "
        f"fused: {fused}"
    )


if __name__ == "__main__":
    sys.exit(main())
