"""Trainings that are killed go on as if nothing had happened."""

import pytest

from tests.forking import run_forked_command

WAYS = ["keras", "tf_keras", "own_loop", "session", "priced"]


@pytest.fixture(scope="module")
def outcome():
    return run_forked_command(["-m", "tests.killed_training", *WAYS])


@pytest.mark.parametrize("way", WAYS)
def test_a_training_killed_and_resumed_equals_an_unbroken_one(outcome, way):
    told = f"{way}: resumed equal, resumed without tf-amp's part different"
    assert told in outcome.out.splitlines(), outcome.err
