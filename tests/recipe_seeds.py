"""The recipe of a seed, and the smallest that breaks the rule in the same plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.recipes import Recipe, recipes

Drawn = TypeVar("Drawn")


class _BrokenError(AssertionError):
    """Tells hypothesis that a recipe breaks the rule."""


def recipe_of(number: int) -> Recipe:
    """Return the recipe that hypothesis draws from a seed."""
    return drawn_from(recipes(), number)


def smallest(number: int, breaks: Callable[[Recipe], bool]) -> Recipe:
    """Return what hypothesis shrinks the recipe of a seed to while it `breaks`."""
    return smallest_of(recipes(), number, breaks)


def drawn_from(strategy: st.SearchStrategy[Drawn], number: int) -> Drawn:
    """Return what a strategy draws from a seed."""
    drawn: list[Drawn] = []
    _draw(strategy, number, drawn.append)
    return drawn[-1]


def smallest_of(
    strategy: st.SearchStrategy[Drawn], number: int, breaks: Callable[[Drawn], bool]
) -> Drawn:
    """Return what it is shrunk to while it `breaks`."""
    broken = [drawn_from(strategy, number)]

    def test(recipe: Drawn) -> None:
        if breaks(recipe):
            broken.append(recipe)
            raise _BrokenError

    try:
        _draw(strategy, number, test)
    except _BrokenError:
        pass
    return broken[-1]


def _draw(
    strategy: st.SearchStrategy[Drawn], number: int, test: Callable[[Drawn], None]
) -> None:
    """Run a test on the simplest recipe, and on the one of the seed."""

    @given(strategy)
    def run(recipe: Drawn) -> None:
        test(recipe)

    phases = [Phase.generate, Phase.shrink]
    options = settings(
        max_examples=2,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(options(run))()
