"""Times of float32 and of 16 bits, run in turn, and which of them is faster.

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
`tests/tf_amp/measuring/steps/test_comparison.py` repeats it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

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


class Comparison(NamedTuple):
    """Times of float32 and of 16 bits, run in turn.

    Attributes:
      pairs: seconds of one step before and after the rewrite, of neighboring runs.
    """

    pairs: tuple[tuple[float, float], ...]

    @property
    def seconds_before(self) -> float:
        """Median seconds of a step before the rewrite."""
        return statistics.median(before for before, _ in self.pairs)

    @property
    def seconds_after(self) -> float:
        """Median seconds of a step after it."""
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
        """Whether the rewrite takes longer, by more than is not worth a word."""
        return math.log(self.ratio) < -LEAST_GAIN

    @property
    def leans_faster(self) -> bool:
        """Whether the rewrite pays beyond doubt; more pairs may find that it does."""
        middle = math.log(self.ratio)
        return middle > LEAST_GAIN and middle > self._doubt

    @property
    def is_faster(self) -> bool | None:
        """Whether the rewrite pays; None where more pairs are to decide."""
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


def error_of_median(values: Sequence[float], least_spread: float = 0.0) -> float:
    """Return the standard error of a median; values scatter by that or more."""
    spread = max(spread_of(values), least_spread)
    return _MEDIAN * spread / math.sqrt(len(values))


def spread_of(values: Sequence[float]) -> float:
    """Estimate the standard deviation of two values or more, whatever the outliers."""
    if len(values) < _QUARTERS:
        return statistics.stdev(values)
    quarters = statistics.quantiles(values, n=_QUARTERS)
    return (quarters[2] - quarters[0]) / _QUARTERS_APART
