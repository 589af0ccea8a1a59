"""Hold random training programs against what skips a step: python -m tests.skips [N].

A step is taken with the true gradients, or skipped exactly where one that it applies
comes from a call that overflowed; the loss scale counts each call. A seed is a program
of functions, branches, loops, several tapes and optimizers, every fourth of them on
replicas; one that breaks the rule is shrunk, and `--recipe` tries the smallest again.
Exit code 0 when the rule holds.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.campaign import Command

if TYPE_CHECKING:
    from tests.skip_recipes import Recipe

# Of a seed's last digit in this number system.
_REPLICAS = (0, 0, 0, 2, 0, 0, 0, 1)


def recipe_of(seed: int) -> Recipe:
    """Return the program of a seed."""
    from tests.recipe_seeds import drawn_from
    from tests.skip_recipes import recipes

    return drawn_from(recipes(_replicas(seed)), seed)


def _replicas(seed: int) -> int:
    return _REPLICAS[seed % len(_REPLICAS)]


def _check(seed: int) -> dict[str, Any]:
    import dataclasses

    from tests.skip_check import check, prepare

    prepare()
    outcome = dataclasses.asdict(check(recipe_of(seed)))
    failure = outcome.pop("failure")
    if failure:
        failure += f"\n  smallest: {_smallest(seed, failure)!r}"
    return {"failures": [failure] if failure else [], **outcome}


def _smallest(seed: int, failure: str) -> Recipe:
    """Return the smallest program that fails in the same way."""
    from tests.recipe_seeds import smallest_of
    from tests.skip_check import check
    from tests.skip_recipes import recipes

    def breaks(recipe: Recipe) -> bool:
        return _kind(check(recipe).failure) == _kind(failure)

    return smallest_of(recipes(_replicas(seed)), seed, breaks)


def _kind(failure: str) -> str:
    """Return what is said, without any numbers."""
    words = failure.partition(": ")[2].split()
    return " ".join(word for word in words[:12] if word.isalpha())


def _reproduce(seed: int) -> bool:
    """Check one seed and show what comes of it."""
    return _try_recipe(repr(recipe_of(seed)))


def _try_recipe(text: str) -> bool:
    """Check one recipe and show what comes of it."""
    from tests import skip_recipes
    from tests.skip_check import check, prepare

    prepare()
    recipe = eval(text, vars(skip_recipes))
    outcome = check(recipe)
    print(recipe, outcome, sep="\n")
    return not outcome.failure


def _summary(totals: Counter[str]) -> str:
    return (
        f"{totals['overflows']} of {totals['calls']} calls for gradients overflowed, "
        f"{totals['taken']} steps had to be taken, {totals['skipped']} to be skipped, "
        f"{totals['either']} might be either, {totals['refused']} programs that "
        f"TensorFlow refuses"
    )


COMMAND = Command(
    "tests.skips", __doc__, _check, _reproduce, _summary, 1200, _try_recipe
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
