"""Run float32 and 16 bits in turn until it is clear which is faster.

The median of the ratios of neighboring runs counts: what slows the machine down for a
while slows both, and a run during which the process stood still is one of many.

A group-sequential test decides, by the boundary of O'Brien and Fleming ("A multiple
testing procedure for clinical trials", Biometrics 35, 1979). After each pair, from the
third on, the median of the logarithms of the ratios is held against its standard error,
times 2.1 after the last pair and more before, in proportion to the root of the pairs
that are left out. So looking again and again does not find by chance what is not there,
and what is clear is found soon.

    16 bits    the median is above LEAST_GAIN, and above 0 beyond doubt
    float32    it is below LEAST_GAIN beyond doubt, or nothing is after MOST_PAIRS

So a tie goes to float32, whose graph is the one given. Of 3000 simulated comparisons of
equals, in which pairs scatter by 1.4 to 21 % and one run of twenty is an outlier, 16
bits win 0 to 4 %; where they are 5 % slower, at most 2 %. Where they are 1.1 times as
fast they win 99 % if pairs scatter by 3 %, and 87 % if by 7; where 1.5 times as fast,
98 % even if by 21, after three to six pairs;
`tests/tf_amp/compare/test_alternation.py` repeats it.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import NamedTuple, TypeVar

# The logarithm of a ratio under which a difference is not worth a changed graph.
LEAST_GAIN = 0.02
FEWEST_PAIRS, MOST_PAIRS = 3, 12
# Standard errors beyond which nothing is left in doubt, after the last pair: twelve
# looks are wrong by chance 2.5 times in a hundred, to one side.
_DEVIATIONS = 2.1
# Standard error of a median, over that of a mean.
_MEDIAN = 1.25
_FEW = 5
# Between the first and the third quarter of a normal distribution, in deviations.
_QUARTERS, _QUARTERS_APART = 4, 1.349
_LEAST_SPREAD = {True: 0.03, False: 0.01}
# So many calls in a row may take so much longer than in float32, in steps of it: by
# less than a twentieth.
_CALLS, _MOST_EXCESS = 20, 0.9
# What a call takes is the median of so many.
_TIMES = 21

_Turn = TypeVar("_Turn")


class Verdict(NamedTuple):
    """Which way is faster, by pairs of neighboring runs.

    Attributes:
      pairs: seconds of one step in float32 and in 16 bits, of neighboring runs.
    """

    pairs: tuple[tuple[float, float], ...]

    @property
    def seconds_before(self) -> float:
        """Median seconds of a step in float32."""
        return statistics.median(before for before, _ in self.pairs)

    @property
    def seconds_after(self) -> float:
        """Median seconds of a step in 16 bits."""
        return statistics.median(after for _, after in self.pairs)

    @property
    def ratio(self) -> float:
        """Median of seconds before over seconds after: above 1 is faster."""
        return math.exp(statistics.median(self._logs))

    @property
    def error(self) -> float:
        """Standard error of the logarithm of the ratio."""
        least_spread = _LEAST_SPREAD[len(self._logs) < _FEW]
        return error_of_median(self._logs, least_spread)

    @property
    def is_slower(self) -> bool:
        """True if 16 bits take longer, by more than is not worth a word."""
        return math.log(self.ratio) < -LEAST_GAIN

    @property
    def leans_faster(self) -> bool:
        """True if 16 bits pay beyond doubt; more pairs may find that they do."""
        middle = math.log(self.ratio)
        return middle > LEAST_GAIN and middle > self._doubt

    @property
    def is_faster(self) -> bool | None:
        """True if 16 bits pay; None where more pairs are to decide."""
        if len(self.pairs) < FEWEST_PAIRS:
            return None
        if self.leans_faster:
            return True
        is_over = len(self.pairs) >= MOST_PAIRS
        is_no_gain = math.log(self.ratio) + self._doubt < LEAST_GAIN
        return False if is_no_gain or is_over else None

    def __str__(self) -> str:
        """Return one line for the log."""
        return (
            f"{self.ratio:.3f}x ({self.seconds_before * 1e3:.3g} -> "
            f"{self.seconds_after * 1e3:.3g} ms, {len(self.pairs)} pairs)"
        )

    @property
    def _doubt(self) -> float:
        looks_left = max(MOST_PAIRS / len(self.pairs), 1.0)
        return _DEVIATIONS * math.sqrt(looks_left) * self.error

    @property
    def _logs(self) -> list[float]:
        return [math.log(before / after) for before, after in self.pairs]


def in_turn(
    float32: _Turn,
    low: _Turn,
    stop: Callable[[Verdict], bool],
    may_run_low: Callable[[], bool] = lambda: True,
) -> Generator[_Turn, float, Verdict]:
    """Yield which of both is to run next, and receive the seconds that it took.

    Each is first in every other pair. Until 16 bits may run, float32 runs again, whose
    median counts then. After each pair it is asked whether to `stop`.
    """
    pairs: list[tuple[float, float]] = []
    while True:
        of_float32 = [(yield float32)] if len(pairs) % 2 else []
        while not may_run_low():
            of_float32.append((yield float32))
        of_low = yield low
        of_float32 = of_float32 or [(yield float32)]
        pairs.append((statistics.median(of_float32), of_low))
        verdict = Verdict(tuple(pairs))
        if stop(verdict):
            return verdict


def alternate(
    float32: Callable[[], float],
    low: Callable[[], float],
    stop: Callable[[Verdict], bool] = lambda verdict: verdict.is_faster is not None,
) -> Verdict:
    """Run two functions in turn, which return the seconds they count, until `stop`."""
    turns = in_turn(float32, low, stop)
    run = next(turns)
    while True:
        try:
            run = turns.send(run())
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict


def error_of_median(values: Sequence[float], least_spread: float = 0.0) -> float:
    """Return the standard error of a median; values scatter by that or more.

    The standard deviation of two values or more is estimated whatever the outliers.
    """
    if len(values) < _QUARTERS:
        spread = statistics.stdev(values)
    else:
        first, _, third = statistics.quantiles(values, n=_QUARTERS)
        spread = (third - first) / _QUARTERS_APART
    return _MEDIAN * max(spread, least_spread) / math.sqrt(len(values))


class Pace:
    """When a call may take longer than a step in float32: seldom enough.

        16 bits take    1.05 times as long    1.2     1.45    2
        of 20 calls     any may be            4       2       1

    So twenty calls in a row take at most a twentieth longer than in float32, or one of
    them does.
    """

    def __init__(self, calm: Hashable) -> None:
        """Measure by calls of one kind, those in float32."""
        self._calm = calm
        self._times: dict[Hashable, deque[float]] = defaultdict(
            lambda: deque(maxlen=_TIMES)
        )
        self._recent: deque[float] = deque([0.0], maxlen=_CALLS - 1)

    @property
    def seconds(self) -> float:
        """Seconds of a call in float32; 0 while that is not known."""
        return self._typical(self._calm)

    def note(self, kind: Hashable, seconds: float) -> None:
        """Count a call."""
        self._times[kind].append(seconds)
        self._recent.append(self.excess(kind))

    def excess(self, kind: Hashable) -> float:
        """Return the steps in float32 by which a call takes longer; 0 if not known."""
        calm, seconds = self.seconds, self._typical(kind)
        return max(0.0, seconds / calm - 1.0) if calm > 0.0 else 0.0

    def allows(self, excess: float) -> bool:
        """Return whether a call may come now that takes so many steps longer.

        One that takes longer than all that is allowed comes once in so many calls.
        """
        lately = sum(self._recent)
        return excess + lately <= _MOST_EXCESS or lately == 0.0

    def _typical(self, kind: Hashable) -> float:
        times = self._times.get(kind)
        return statistics.median(times) if times else 0.0
