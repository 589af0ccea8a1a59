"""Several dtypes of one op take turns being timed, and what their figures are.

What disturbs one dtype then disturbs the others too. The median of the turns counts,
and how far they scatter. They end when the median is sure enough or the time is over.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from grappler_pass.costs.database.price_list import Sample
from tf_amp.measuring.op_timing import Chain, elapsed
from tf_amp.measuring.steps.comparison import spread_of

LEAST_SECONDS = 1e-7
# Turns of each dtype: so many and for so long, unless the op is slow.
_TURNS, _TURN_SECONDS, _MOST_TURNS = 5, 0.01, 50
# More of them where the median is less sure than this.
_SPREAD_ENOUGH = 0.05
SLOW_SECONDS, _SLOW_TURNS = 0.15, 3
# A run that takes so long is worth knowing even if there was time for but one,
# warm-up included.
_LONG_SECONDS = 0.2
_SPREAD_OF_ONE = 0.3


@dataclass
class Series:
    """Timed runs of one chain."""

    chain: Chain
    runs: list[float] = field(default_factory=list)
    bases: list[float] = field(default_factory=list)

    def turn(self) -> None:
        """Run the chain and its base once, and note the seconds."""
        self.runs.append(elapsed(self.chain.run))
        self.bases.append(elapsed(self.chain.base))

    def seconds(self) -> list[float]:
        """Return seconds of one execution, by run."""
        base = statistics.median(self.bases) if self.bases else 0.0
        return [
            max((run - base) / self.chain.length, LEAST_SECONDS) for run in self.runs
        ]


@dataclass
class Subject:
    """An op at one dtype, with its runs on warm data, and on cold where that counts."""

    dtype: str
    warm: Series
    cold: Series | None = None

    @property
    def is_trustworthy(self) -> bool:
        """Whether there was time for a figure that is worth being remembered."""
        runs = self.warm.runs
        return len(runs) >= _SLOW_TURNS or min(runs, default=0.0) >= _LONG_SECONDS

    def sample(self) -> Sample:
        """Return the figures of the turns so far."""
        warm = self.warm.seconds()
        middle = statistics.median(warm)
        lost = self.cold.seconds() if self.cold else []
        cold = statistics.median(lost) if lost else middle
        return Sample(
            seconds=middle,
            cold_seconds=max(cold, middle),
            spread=_spread(warm),
            count=len(warm) * self.warm.chain.length,
            when=time.time(),
        )


def take_turns(series: Sequence[Series], end: float) -> None:
    """Time chains in turn until that is enough or the time is over."""
    begin = time.perf_counter()
    for turn in range(_MOST_TURNS if series else 0):
        for each in series:
            each.turn()
        now = time.perf_counter()
        spent, turns = now - begin, turn + 1
        if _is_enough(series, turns, spent) or now + spent / turns > end:
            return


def _is_enough(series: Sequence[Series], turns: int, spent: float) -> bool:
    if spent >= SLOW_SECONDS:
        return turns >= _SLOW_TURNS
    if turns < _TURNS or spent < _TURN_SECONDS * len(series):
        return False
    spread = max(_spread(each.seconds()) for each in series)
    return spread < _SPREAD_ENOUGH * math.sqrt(turns)


def _spread(seconds: Sequence[float]) -> float:
    """Estimate the standard deviation of the logarithm, whatever the outliers."""
    if len(seconds) < 2:
        return _SPREAD_OF_ONE
    return spread_of([math.log(each) for each in seconds])
