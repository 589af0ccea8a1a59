"""Random programs, captured for a GPU, are as right as those cast by hand."""

from __future__ import annotations

import pytest

from tests.gpu.device import ON_THE_DEVICE
from tests.recipes import recipe_of
from tests.yardstick_check import PLANS, check

pytestmark = ON_THE_DEVICE


@pytest.mark.parametrize("seed", range(60))
def test_no_error_passes_what_casts_by_hand_give(seed: int) -> None:
    outcome = check(recipe_of(seed), PLANS)
    assert not outcome.failures, list(outcome.failures.values())
