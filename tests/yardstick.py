"""Hold random programs against casting by hand: python -m tests.yardstick [N].

No program's error may exceed three times what it is when the operands of its products
are cast to 16 bits by hand. A seed is a program; one that breaks the rule is shrunk,
and the smallest program that does so in the same plan is printed, with which
`--recipe` tries it again. Exit code 0 when the rule holds.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from tests import recipes
from tests.campaign import Command
from tests.recipes import Recipe, recipe_of, smallest_of
from tests.yardstick_check import PLANS, check, plan_of


def _check(seed: int) -> dict[str, Any]:
    recipe = recipe_of(seed)
    plan = plan_of(recipe)
    outcome = check(recipe, (plan,))
    failures = []
    if worst := outcome.failures.get(plan):

        def breaks(smaller: Recipe) -> bool:
            finding = check(smaller, (plan,)).failures.get(plan)
            return finding is not None and finding.kind == worst.kind

        smallest = smallest_of(recipes.recipes(), seed, breaks)
        failures = [f"{plan}: {worst}\n  smallest: {smallest!r}"]
    return {
        "failures": failures,
        "programs": outcome.rewritten > 0,
        **outcome.counts,
    }


def _try_recipe(text: str) -> bool:
    """Check one recipe and show what each plan does."""
    recipe = eval(text, vars(recipes))
    print(recipe)
    outcome = check(recipe, PLANS)
    for plan, finding in outcome.failures.items():
        print(f"  {plan}: {finding}")
    print(f"{outcome.rewritten} rewritings, {outcome.undecided} results undecided")
    return not outcome.failures


def _summary(totals: Counter[str]) -> str:
    return (
        f"{totals['programs']} of them rewritten in {totals['rewritten']} ways, "
        f"{totals['undecided']} of {totals['results']} results without a verdict"
    )


COMMAND = Command(
    "tests.yardstick",
    __doc__,
    _check,
    lambda seed: _try_recipe(repr(recipe_of(seed))),
    _summary,
    1200,
    _try_recipe,
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
