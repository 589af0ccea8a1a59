"""What steps have found is remembered, and what is in doubt is compared."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
import tensorflow as tf

from grappler_pass.planning.draft import Outcome, Trial
from tests.test_namesakes import FASTER, SLOWER, Steps, product, trial_of
from tf_amp.measuring.known_costs import KnownCosts
from tf_amp.measuring.steps import compared_calls, verdicts
from tf_amp.measuring.steps.comparison import Comparison


@pytest.fixture
def trial() -> Trial:
    return trial_of(product(16))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Steps that begin in this process."""
    steps = Steps()
    monkeypatch.setattr(compared_calls, "begin", steps.begin)
    return steps


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_found", {})
    monkeypatch.setattr(verdicts, "_rejected", set())


def outcome(trial: Trial, folder: pathlib.Path) -> Outcome:
    """Return what a process says that has just started."""
    verdicts._found.clear()
    verdicts._rejected.clear()
    costs = KnownCosts.load("CPU", "this CPU", tf.__version__, folder)
    return verdicts.outcome_of(trial, costs, lambda is_faster: None)


@pytest.mark.parametrize("compared", [FASTER, SLOWER])
def test_a_verdict_outlives_the_process(
    compared: Comparison, trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(compared)
    expected = Outcome.FASTER if compared is FASTER else Outcome.SLOWER
    assert outcome(trial, tmp_path) is expected
    assert steps.begun == 1


def test_what_failed_once_may_be_tried_by_another_process(
    trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(None)
    assert outcome(trial, tmp_path) is Outcome.OPEN


def test_what_is_certain_is_not_compared_unless_steps_have_said_otherwise(
    trial: Trial, tmp_path: pathlib.Path, steps: Steps
) -> None:
    certain = dataclasses.replace(trial, is_certain=True)
    assert outcome(certain, tmp_path) is Outcome.UNKNOWN
    assert steps.begun == 0
    assert outcome(trial, tmp_path) is Outcome.OPEN
    steps.end(SLOWER)
    assert outcome(certain, tmp_path) is Outcome.SLOWER


def test_outside_of_a_call_nothing_is_compared(
    trial: Trial, tmp_path: pathlib.Path
) -> None:
    assert outcome(trial, tmp_path) is Outcome.UNKNOWN
