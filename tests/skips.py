"""Hold random training programs against what skips a step: python -m tests.skips [N].

A step is taken with the true gradients, or skipped exactly where one that it applies
comes from a call that overflowed; the loss scale counts each call. A seed is a program
of functions, branches, loops, several tapes and optimizers, every fourth of them on
replicas; one that breaks the rule is shrunk, and `--recipe` tries the smallest again.
Exit code 0 when the rule holds.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis.strategies import SearchStrategy

from tests import saving, skip_recipes
from tests.campaign import Command
from tests.recipes import drawn_from, smallest_of
from tests.skip_check import Outcome, check, prepare
from tests.skip_recipes import Recipe, recipes

# Of a seed's last digit in this number system.
_REPLICAS = (0, 0, 0, 2, 0, 0, 0, 1)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    words = saving.words_of(arguments)
    checked = functools.partial(check, saves_memory=bool(words))
    try_recipe = functools.partial(_try_recipe, checked)
    command = Command(
        "tests.skips",
        __doc__ or "",
        functools.partial(_check, checked),
        lambda seed: try_recipe(repr(recipe_of(seed))),
        _summary,
        1200,
        try_recipe,
        own_options=(saving.OPTION,),
        passed=words,
    )
    return command.run(arguments)


def recipe_of(seed: int) -> Recipe:
    """Return the program of a seed."""
    return drawn_from(_strategy(seed), seed)


def _strategy(seed: int) -> SearchStrategy[Recipe]:
    return recipes(_REPLICAS[seed % len(_REPLICAS)])


def _check(check: Callable[[Recipe], Outcome], seed: int) -> dict[str, Any]:
    prepare()
    outcome = dataclasses.asdict(check(recipe_of(seed)))
    failure = outcome.pop("failure")
    if failure:
        smallest = smallest_of(
            _strategy(seed),
            seed,
            lambda recipe: _kind(check(recipe).failure) == _kind(failure),
        )
        failure += f"\n  smallest: {smallest!r}"
    return {"failures": [failure] if failure else [], **outcome}


def _kind(failure: str) -> str:
    """Return what is said, without any numbers."""
    words = failure.partition(": ")[2].split()
    return " ".join(word for word in words[:12] if word.isalpha())


def _try_recipe(check: Callable[[Recipe], Outcome], text: str) -> bool:
    """Check one recipe and show what comes of it."""
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


if __name__ == "__main__":
    sys.exit(main())
