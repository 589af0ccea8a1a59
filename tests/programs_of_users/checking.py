"""Hold a program of a user against casting by hand, in each plan."""

from __future__ import annotations

from collections.abc import Mapping

from tests.programs_of_users.building import built
from tests.programs_of_users.catalog import BY_NAME
from tests.rule import Finding
from tests.soundness import LOW_DTYPES
from tests.yardstick_check import Contest, Outcome, PlanKind

_LEVELS = ("O1", "O2")
_PROFILES = ("cpu-avx512-bf16", "a100", "h100")


def check(name: str) -> Outcome:
    """Build a program for each 16-bit type, and rewrite it by all plans for that."""
    outcomes = [_checked(name, low_dtype) for low_dtype in LOW_DTYPES]
    failures: Mapping[PlanKind, Finding] = {
        plan: finding
        for outcome in outcomes
        for plan, finding in outcome.failures.items()
    }
    return Outcome(
        failures,
        sum(outcome.rewritten for outcome in outcomes),
        sum(outcome.results for outcome in outcomes),
        sum(outcome.undecided for outcome in outcomes),
    )


def _checked(name: str, low_dtype: str) -> Outcome:
    dish, iterations = built(BY_NAME[name], low_dtype)
    plans = [
        PlanKind(level, low_dtype, profile)
        for level in _LEVELS
        for profile in _PROFILES
    ]
    return Contest(dish, iterations).outcome(plans)
