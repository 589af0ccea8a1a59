"""A comparison slows a job down by little, whichever instance is faster."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tf_amp.compare import own_steps
from tf_amp.compare.alternation import Pace
from tf_amp.compare.own_steps import FLOAT32, MIXED, StepComparison

# Of float32's speed, and of how many calls in a row.
LEAST_SPEED, CALLS = 0.95, 20
FLOAT32_SECONDS, PROFILE_SECONDS = 0.1, 0.02


class Called(NamedTuple):
    """A call of a comparison.

    Attributes:
      label: of the instance.
      seconds: of the call, its profile included.
      is_first: whether it was that instance's first.
    """

    label: str
    seconds: float
    is_first: bool


class Job:
    """A function whose instances take given times, by a clock of its own."""

    def __init__(self, comparison: StepComparison, seconds: dict[str, float]) -> None:
        """Begin with the call during which the comparison was begun."""
        self.comparison = comparison
        self.calls = [Called(MIXED, seconds[MIXED], True)]
        self.verdict_after = 0
        self._seconds = seconds
        self._now = 0.0
        self._random = np.random.default_rng(1)

    def clock(self) -> float:
        """Tell the time."""
        return self._now

    def step(self) -> None:
        """Call the function once."""
        begin, labels = self._now, []

        def call(label: str) -> None:
            labels.append(label)
            noise = np.exp(self._random.normal(0.0, 0.01))
            self._now += self._seconds[label] * float(noise)

        self.comparison.run(call)
        (label,) = labels
        is_first = label not in {each.label for each in self.calls}
        self.calls.append(Called(label, self._now - begin, is_first))
        if self.comparison.is_faster is not None and not self.verdict_after:
            self.verdict_after = len(self.calls)

    def profiled(self, call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
        """Profile a call, which takes a while."""
        outputs = call()
        self._now += PROFILE_SECONDS
        return outputs, {}


def run(
    ratio: float, monkeypatch: pytest.MonkeyPatch, *, is_late: bool, calls: int = 400
) -> Job:
    """Compare an instance in 16 bits that is so many times as fast as float32."""
    comparison = StepComparison(is_late=is_late)
    comparison.when_decided(lambda is_faster, steps: None)
    comparison.when_profiled(lambda steps: None)
    seconds = {comparison.float32: FLOAT32_SECONDS}
    seconds[comparison.mixed] = FLOAT32_SECONDS / ratio
    job = Job(comparison, seconds)
    monkeypatch.setattr(own_steps.time, "perf_counter", job.clock)
    monkeypatch.setattr(own_steps, "profiled", job.profiled)
    for _ in range(calls):
        job.step()
    return job


@pytest.mark.parametrize("is_late", [True, False])
@pytest.mark.parametrize("ratio", [0.3, 0.55, 0.8, 0.95, 1.0, 1.1, 1.3, 3.0])
def test_the_loser_is_called_twenty_times_at_most(
    ratio: float, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run(ratio, monkeypatch, is_late=is_late)
    comparison = job.comparison
    assert comparison.is_over
    assert comparison.is_faster is (ratio > 1.02)
    in_16_bits = [each for each in job.calls if each.label == comparison.mixed]
    if comparison.is_faster:
        before = own_steps.CALLS_IN_FLOAT32 if is_late else 0
        assert len(job.calls) - len(in_16_bits) - before <= CALLS
    else:
        assert len(in_16_bits) <= CALLS


@pytest.mark.parametrize("ratio", [0.6, 0.8, 0.9, 1.0, 1.3])
def test_no_twenty_calls_take_much_longer_than_in_float32(
    ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = run(ratio, monkeypatch, is_late=True)
    seconds = [each.seconds for each in job.calls if not each.is_first]
    sums = (sum(seconds[i : i + CALLS]) for i in range(len(seconds) - CALLS))
    assert CALLS * FLOAT32_SECONDS / max(sums) >= LEAST_SPEED


@pytest.mark.parametrize(("ratio", "calls"), [(0.55, 90), (0.8, 50), (1.3, 35)])
def test_what_is_clear_is_decided_soon(
    ratio: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < run(ratio, monkeypatch, is_late=True).verdict_after <= calls


def test_calls_alternate_where_16_bits_are_no_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = run(1.3, monkeypatch, is_late=False, calls=12)
    labels = [label for label, _ in itertools.groupby(each.label for each in job.calls)]
    assert labels[:4] == [MIXED, FLOAT32, MIXED, FLOAT32]


def test_what_takes_too_long_by_itself_comes_once_in_so_many_calls() -> None:
    pace = Pace("float32")
    pace.note("float32", 1.0)
    pace.note("16 bits", 5.0)
    waited = 0
    while not pace.allows(pace.excess("16 bits")):
        pace.note("float32", 1.0)
        waited += 1
    assert waited == CALLS - 1
    assert not pace.excess("float32")
