"""Hold random programs against casting by hand: python -m tests.yardstick [N].

No program's error may exceed three times what it is when the operands of its products
are cast to 16 bits by hand. A seed is a program; one that breaks the rule is shrunk,
and the smallest program that does so in the same plan is printed, with which
`--recipe` tries it again. Exit code 0 when the rule holds.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.campaign import Command

if TYPE_CHECKING:
    from tests.recipes import Recipe
    from tests.yardstick_check import PlanKind


def _check(seed: int) -> dict[str, Any]:
    from tests.recipe_seeds import recipe_of
    from tests.yardstick_check import check, plan_of

    recipe = recipe_of(seed)
    outcome = check(recipe, (plan_of(recipe),))
    failures = [
        f"{plan}: {finding}\n  smallest: {_smallest(seed, plan, finding.kind)!r}"
        for plan, finding in list(outcome.failures.items())[:1]
    ]
    return {
        "failures": failures,
        "programs": outcome.rewritten > 0,
        "rewritten": outcome.rewritten,
        "results": outcome.results,
        "undecided": outcome.undecided,
    }


def _smallest(seed: int, plan: PlanKind, kind: str) -> Recipe:
    """Return the smallest program of which the same plan gets the same result wrong."""
    from tests.recipe_seeds import smallest
    from tests.yardstick_check import check

    def breaks(recipe: Recipe) -> bool:
        finding = check(recipe, (plan,)).failures.get(plan)
        return finding is not None and finding.kind == kind

    return smallest(seed, breaks)


def _reproduce(seed: int) -> bool:
    """Check one seed and show what each plan does."""
    from tests.recipe_seeds import recipe_of

    return _try_recipe(repr(recipe_of(seed)))


def _try_recipe(text: str) -> bool:
    """Check one recipe and show what each plan does."""
    from tests import recipes
    from tests.yardstick_check import PLANS, check

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
    "tests.yardstick", __doc__, _check, _reproduce, _summary, 1200, _try_recipe
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
