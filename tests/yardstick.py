"""Hold random programs against casting by hand: python -m tests.yardstick [N].

No program's error may exceed three times what it is when the operands of its products
are cast to 16 bits by hand. A seed is a program; one that breaks the rule is shrunk,
and the smallest program that does so in the same plan is printed, with which
`--recipe` tries it again. Exit code 0 when the rule holds.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests import recipes, saving
from tests.campaign import Command
from tests.recipes import Recipe, recipe_of, smallest_of
from tests.yardstick_check import PLANS, Outcome, PlanKind, check, plan_of


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    words = saving.words_of(arguments)
    saves_memory = bool(words)
    try_recipe = functools.partial(_try_recipe, saves_memory=saves_memory)
    command = Command(
        "tests.yardstick",
        __doc__ or "",
        functools.partial(_check, saves_memory=saves_memory),
        lambda seed: try_recipe(repr(recipe_of(seed))),
        _summary,
        1200,
        try_recipe,
        own_options=(saving.OPTION,),
        passed=words,
    )
    return command.run(arguments)


def _check(seed: int, *, saves_memory: bool) -> dict[str, Any]:
    recipe = recipe_of(seed)
    plan = dataclasses.replace(plan_of(recipe), saves_memory=saves_memory)
    outcome = _checked(recipe, (plan,))
    failures = []
    if worst := outcome.failures.get(plan):

        def breaks(smaller: Recipe) -> bool:
            finding = _checked(smaller, (plan,)).failures.get(plan)
            return finding is not None and finding.kind == worst.kind

        smallest = smallest_of(recipes.recipes(), seed, breaks)
        failures = [f"{plan}: {worst}\n  smallest: {smallest!r}"]
    return {
        "failures": failures,
        "programs": outcome.rewritten > 0,
        **outcome.counts,
    }


def _checked(recipe: Recipe, plans: Iterable[PlanKind]) -> Outcome:
    with saving.share_of(recipe.prices):
        return check(recipe, plans)


def _try_recipe(text: str, *, saves_memory: bool) -> bool:
    """Check one recipe and show what each plan does."""
    recipe = eval(text, vars(recipes))
    print(recipe)
    outcome = _checked(
        recipe, [dataclasses.replace(p, saves_memory=saves_memory) for p in PLANS]
    )
    for plan, finding in outcome.failures.items():
        print(f"  {plan}: {finding}")
    print(f"{outcome.rewritten} rewritings, {outcome.undecided} results undecided")
    return not outcome.failures


def _summary(totals: Counter[str]) -> str:
    return (
        f"{totals['programs']} of them rewritten in {totals['rewritten']} ways, "
        f"{totals['undecided']} of {totals['results']} results without a verdict"
    )


if __name__ == "__main__":
    sys.exit(main())
