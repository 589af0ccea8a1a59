"""All of the programs, by their names, and each held against casting by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from tests.programs import public_functions
from tests.programs_of_users import (
    attention,
    decisions,
    densities,
    derivatives,
    graphs_of_tensorflow,
    images,
    indices,
    loops,
    losses,
    normalizations,
    training,
)
from tests.programs_of_users.building import UserProgram, built
from tests.soundness import LOW_DTYPES
from tests.yardstick_check import Contest, Outcome, PlanKind

_MODULES = (
    *(losses, normalizations, attention, indices, loops, derivatives, densities),
    *(images, training, decisions, graphs_of_tensorflow),
)
BY_NAME: Mapping[str, Callable[[], UserProgram]] = {
    make.__name__: make
    for module in _MODULES
    for make in (*public_functions(module), *getattr(module, "PROGRAMS", ()))
}
_PLANS = tuple(itertools.product(("O1", "O2"), ("cpu-avx512-bf16", "a100", "h100")))


def check(name: str) -> Outcome:
    """Build a program for each 16-bit type, and rewrite it by all plans for that."""
    outcomes = [
        Contest(*built(BY_NAME[name], low_dtype)).outcome(
            [PlanKind(level, low_dtype, profile) for level, profile in _PLANS]
        )
        for low_dtype in LOW_DTYPES
    ]
    return Outcome(
        {plan: worst for each in outcomes for plan, worst in each.failures.items()},
        sum(outcome.rewritten for outcome in outcomes),
        sum(outcome.results for outcome in outcomes),
        sum(outcome.undecided for outcome in outcomes),
    )
