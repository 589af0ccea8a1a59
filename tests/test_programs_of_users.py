"""Ten programs as people write them are as good as cast by hand."""

from __future__ import annotations

import pytest

from tests.hand_casts import rounded
from tests.long import parameters
from tests.programs_of_users.building import built
from tests.programs_of_users.catalog import BY_NAME, check
from tests.soundness import LOW_DTYPES
from tests.yardstick_check import Contest

# One of each kind; `python -m tests.programs_of_users` checks all.
CHECKED = (
    "triplet_loss",
    "moments_of_the_batch",
    "rotated_positions",
    "ids_among_features",
    "scan_of_a_filter",
    "gradient_penalty",
    "hamiltonian_sampler",
    "boxes_of_anchors",
    "adam_by_hand",
    "squashed_actions",
)


@pytest.mark.parametrize(
    "name", parameters(CHECKED, ("triplet_loss", "rotated_positions", "adam_by_hand"))
)
def test_no_error_passes_three_times_what_casts_by_hand_give(name: str) -> None:
    outcome = check(name)
    assert outcome.rewritten, "nothing was tried"
    assert not outcome.undecided
    assert not outcome.failures, "; ".join(
        f"{plan}: {finding}" for plan, finding in outcome.failures.items()
    )


@pytest.mark.parametrize("low_dtype", LOW_DTYPES)
def test_an_average_of_weights_that_is_rounded_is_a_breach(low_dtype: str) -> None:
    dish, _ = built(BY_NAME["average_of_weights"], low_dtype)
    contest = Contest(dish)
    planted = contest.by_hand(low_dtype, results=False)
    update = next(node for node in planted.node if node.op == "AssignVariableOp")
    name = f"{update.name}/value"
    update.input[1] = rounded(planted, update.input[1], name, LOW_DTYPES[low_dtype])
    findings = contest.judge(planted, low_dtype)
    assert not all(finding.ok for finding in findings if finding is not None)


def test_there_are_sixty_programs_or_more_each_of_its_own_name() -> None:
    assert len(BY_NAME) >= 60
    assert set(CHECKED) < set(BY_NAME)
