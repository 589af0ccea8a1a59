"""What one process finds out about a graph, those that wait for it take over."""

from __future__ import annotations

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator

import pytest
import tensorflow as tf

from grappler_pass.costs.records import Verdict
from grappler_pass.draft import Trial
from tests.lock_holding import lock_held
from tests.test_namesakes import Judge, product, trial_of
from tf_amp.tuning import progress, verdicts
from tf_amp.tuning.budget import DEFAULT, Allowance, Budget, Limits
from tf_amp.tuning.fingerprint import fingerprint_of
from tf_amp.tuning.judging import Judgment
from tf_amp.tuning.known_costs import KnownCosts
from tf_amp.tuning.sandbox import NotRunnable
from tf_amp.tuning.spending import GraphLedger
from tf_amp.tuning.trial import Comparison
from tf_amp.tuning.tuner import OnlineTuner

_FASTER = Judgment(Comparison(((2.0, 1.0),) * 20))
_UNDECIDED = Judgment(Comparison(((2.0, 1.0), (1.0, 2.0))))


@pytest.fixture
def trial() -> Trial:
    return trial_of(product(16))


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "_found", {})
    monkeypatch.setattr(verdicts, "_rejected", set())


def costs_in(folder: pathlib.Path) -> KnownCosts:
    """Return what a process that has just started knows."""
    return KnownCosts.load("CPU", "this CPU", tf.__version__, folder)


def keep(trial: Trial, folder: pathlib.Path, *, faster: bool, is_open: bool) -> None:
    """Keep a verdict as another process does."""
    costs = costs_in(folder)
    assert costs.database is not None
    name = fingerprint_of(trial) + (" open" if is_open else "")
    verdict = Verdict(faster, 2.0 if faster else 0.5, time.time())
    costs.database.keep_verdict(costs.key, costs.tensorflow, name, verdict)


def turn(
    is_mine: bool, meanwhile: Callable[[], None], at_end: Callable[[], None]
) -> Callable[..., contextlib.AbstractContextManager[bool]]:
    """Return a turn of the machine that comes, or does not, after something else."""

    @contextlib.contextmanager
    def paid_turn(folder: pathlib.Path, allowance: Allowance) -> Iterator[bool]:
        meanwhile()
        yield is_mine
        at_end()

    return paid_turn


@pytest.mark.parametrize("is_mine", [True, False])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_verdict_found_while_waiting_for_the_turn_is_taken(
    is_mine: bool,
    is_open: bool,
    trial: Trial,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def meanwhile() -> None:
        keep(trial, tmp_path, faster=False, is_open=is_open)

    monkeypatch.setattr(verdicts, "judge", judge := Judge([_FASTER]))
    monkeypatch.setattr(verdicts, "paid_turn", turn(is_mine, meanwhile, lambda: None))
    allowance = Budget(DEFAULT).allowance("graph")
    assert verdicts.is_faster(trial, costs_in(tmp_path), allowance) is False
    assert judge.asked == 0


def test_a_turn_that_does_not_come_decides_nothing(
    trial: Trial, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "judge", judge := Judge([_FASTER]))
    monkeypatch.setattr(verdicts, "paid_turn", turn(False, lambda: None, lambda: None))
    allowance = Budget(DEFAULT).allowance("graph")
    assert verdicts.is_faster(trial, costs_in(tmp_path), allowance) is None
    # What an earlier run has left open counts for what it leans to.
    keep(trial, tmp_path, faster=True, is_open=True)
    assert verdicts.is_faster(trial, costs_in(tmp_path), allowance) is True
    assert judge.asked == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_only_who_waits_for_another_process_says_so(
    is_known: bool,
    trial: Trial,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[progress.Note] = []
    monkeypatch.setattr(progress, "_readers", [heard.append])
    if is_known:
        keep(trial, tmp_path, faster=True, is_open=False)
    allowance = Budget(Limits(per_graph=0.1)).allowance("graph")
    tuner = OnlineTuner(costs_in(tmp_path), allowance)
    with lock_held(tmp_path) as holder:
        assert tuner.is_faster(trial) is (True if is_known else None)
    told = [f"process {holder.pid} " in str(note) for note in heard]
    assert told == ([] if is_known else [True])


def test_what_an_earlier_run_has_left_open_is_tried_again(
    trial: Trial, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(trial, tmp_path, faster=False, is_open=True)
    monkeypatch.setattr(verdicts, "judge", judge := Judge([_FASTER]))
    allowance = Budget(DEFAULT).allowance("graph")
    assert verdicts.is_faster(trial, costs_in(tmp_path), allowance) is True
    assert judge.asked == 1


@pytest.mark.parametrize("judgment", [_FASTER, _UNDECIDED])
def test_a_verdict_is_kept_before_the_next_process_has_its_turn(
    judgment: Judgment,
    trial: Trial,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Verdict | None] = []

    def look() -> None:
        costs = costs_in(tmp_path)
        assert costs.database is not None
        name = fingerprint_of(trial) + ("" if judgment is _FASTER else " open")
        kept.append(costs.database.verdict(costs.key, costs.tensorflow, name))

    monkeypatch.setattr(verdicts, "judge", Judge([judgment]))
    monkeypatch.setattr(verdicts, "paid_turn", turn(True, lambda: None, look))
    allowance = Budget(DEFAULT).allowance("graph")
    answer = verdicts.is_faster(trial, costs_in(tmp_path), allowance)
    assert [each and each.faster for each in kept] == [answer]


def test_what_was_tried_in_vain_is_not_tried_anew_by_every_process(
    trial: Trial, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def too_long(trial: Trial, seconds: float) -> Judgment:
        now[0] += 2.5
        raise NotRunnable("its steps take longer than there is time")

    def in_a_new_process() -> Allowance:
        ledger = GraphLedger(costs_in(tmp_path), trial.before)
        return Budget(DEFAULT, clock=lambda: now[0]).allowance("graph", ledger)

    monkeypatch.setattr(verdicts, "judge", too_long)
    waiting = in_a_new_process()
    with waiting.waiting():
        now[0] += 1.0
    waiting.keep()
    assert waiting.remaining() == 2.0
    # Others were at work: this may be otherwise now.
    first = in_a_new_process()
    assert first.remaining() == 3.0
    assert verdicts.is_faster(trial, costs_in(tmp_path), first) is None
    assert in_a_new_process().remaining() == 0.5
