"""What pairs of times say, how often they are wrong, and how seldom slow calls come."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tf_amp.compare import own_steps
from tf_amp.compare.alternation import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    Pace,
    Verdict,
    alternate,
)
from tf_amp.compare.own_steps import FLOAT32, MIXED, StepComparison


def _comparison(ratios: list[float]) -> Verdict:
    return Verdict(tuple((0.1 * ratio, 0.1) for ratio in ratios))


@pytest.mark.parametrize(
    ("ratios", "faster"),
    [
        ([1.6, 1.5, 1.7] * 2, True),
        ([0.5, 0.6, 0.55] * 2, False),
        ([1.0, 1.01, 0.99, 1.0, 1.005, 0.995] * 2, False),
        ([1.03, 0.97, 1.2, 0.9, 1.1, 1.0], None),
        ([5.0] * (FEWEST_PAIRS - 1), None),
        ([5.0, 0.2, 1.0, 1.3, 0.4, 2.0], None),
        # What is clear is clear after three.
        ([1.31, 1.3, 1.29], True),
        ([0.8, 0.79, 0.81], False),
        ([1.05, 1.06, 1.04], None),
    ],
)
def test_faster_is_what_is_beyond_noise(
    ratios: list[float], faster: bool | None
) -> None:
    assert _comparison(ratios).is_faster is faster


def test_one_disturbed_pair_changes_nothing() -> None:
    calm = [1.5, 1.52, 1.48, 1.51, 1.5]
    assert _comparison([*calm, 40.0]).ratio == pytest.approx(1.5, rel=0.01)


def test_what_stays_open_ends_in_float32() -> None:
    ratios = [1.3, 1.0, 0.8, 1.02] * (MOST_PAIRS // 4)
    assert _comparison(ratios[:-1]).is_faster is None
    assert _comparison(ratios).is_faster is False


def _decided(gain: float, noise: float, random: np.random.Generator) -> bool:
    """Return the verdict on runs that scatter, one of twenty of them widely."""

    def disturbance() -> float:
        tail = abs(random.normal(0.0, 0.5)) if random.random() < 0.05 else 0.0
        return math.exp(random.normal(0.0, noise) + tail)

    pairs: list[tuple[float, float]] = []
    while (verdict := Verdict(tuple(pairs)).is_faster) is None:
        pairs.append((math.exp(gain) * disturbance(), disturbance()))
    return verdict


@pytest.mark.parametrize(
    ("gain", "least", "most"), [(0.0, 0.0, 0.06), (-0.05, 0.0, 0.04), (0.4, 0.95, 1.0)]
)
@pytest.mark.parametrize("noise", [0.02, 0.15])
def test_the_test_is_as_often_wrong_as_it_says(
    noise: float, gain: float, least: float, most: float
) -> None:
    random = np.random.default_rng(1)
    verdicts = [_decided(gain, noise, random) for _ in range(150)]
    assert least <= np.mean(verdicts) <= most


def test_two_functions_are_run_in_turn_until_it_is_clear() -> None:
    ran: list[str] = []

    def run(name: str, seconds: float) -> float:
        ran.append(name)
        return seconds

    verdict = alternate(lambda: run("float32", 1.5), lambda: run("16 bits", 1.0))
    assert verdict.is_faster and verdict.ratio == pytest.approx(1.5)
    assert ran[:4] == ["16 bits", "float32", "float32", "16 bits"]
    assert len(ran) == 2 * FEWEST_PAIRS


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
