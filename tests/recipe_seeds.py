"""The recipe of a seed, and the smallest that breaks the rule in the same plan."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.recipes import Recipe, recipes


class _BrokenError(AssertionError):
    """Tells hypothesis that a recipe breaks the rule."""


def recipe_of(number: int) -> Recipe:
    """Return the recipe that hypothesis draws from a seed."""
    drawn: list[Recipe] = []
    _draw(number, drawn.append)
    return drawn[-1]


def smallest(number: int, breaks: Callable[[Recipe], bool]) -> Recipe:
    """Return what hypothesis shrinks the recipe of a seed to while it `breaks`."""
    broken = [recipe_of(number)]

    def test(recipe: Recipe) -> None:
        if breaks(recipe):
            broken.append(recipe)
            raise _BrokenError

    try:
        _draw(number, test)
    except _BrokenError:
        pass
    return broken[-1]


def _draw(number: int, test: Callable[[Recipe], None]) -> None:
    """Run a test on the simplest recipe, and on the one of the seed."""

    @given(recipes())
    def run(recipe: Recipe) -> None:
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
