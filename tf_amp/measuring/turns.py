"""Several dtypes of one op take turns being timed, and what their figures are.

What disturbs one dtype then disturbs the others too. The median of the turns counts,
and how far they scatter. They end when the median is sure enough or the time is over.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

from grappler_pass.costs.database.price_list import Sample
from tf_amp.measuring.op_timing import Chain
from tf_amp.measuring.steps.comparison import spread_of

# Turns of each dtype: so many and for so long, unless the op is slow.
_TURNS, _TURN_SECONDS, _MOST_TURNS = 5, 0.01, 50
# More of them where the median is less sure than this.
_SPREAD_ENOUGH = 0.05
SLOW_SECONDS, _SLOW_TURNS = 0.15, 3
# A run that takes so long is worth knowing even if there was time for but one,
# warm-up included.
_LONG_SECONDS = 0.2
_SPREAD_OF_ONE = 0.3


def is_trustworthy(chain: Chain) -> bool:
    """Return whether there was time for a figure that is worth being remembered."""
    return (
        len(chain.runs) >= _SLOW_TURNS or min(chain.runs, default=0.0) >= _LONG_SECONDS
    )


def sample_of(warm: Chain, cold: Chain | None) -> Sample:
    """Return the figures of the turns so far, on warm data and, if taken, on cold."""
    seconds = warm.seconds()
    middle = statistics.median(seconds)
    lost = cold.seconds() if cold else []
    return Sample(
        seconds=middle,
        cold_seconds=max(statistics.median(lost), middle) if lost else middle,
        spread=_spread(seconds),
        count=len(seconds) * warm.length,
        when=time.time(),
    )


def take_turns(chains: Sequence[Chain], end: float) -> None:
    """Time chains in turn until that is enough or the time is over."""
    begin = time.perf_counter()
    for turn in range(_MOST_TURNS if chains else 0):
        for each in chains:
            each.turn()
        now = time.perf_counter()
        spent, turns = now - begin, turn + 1
        if _is_enough(chains, turns, spent) or now + spent / turns > end:
            return


def _is_enough(chains: Sequence[Chain], turns: int, spent: float) -> bool:
    if spent >= SLOW_SECONDS:
        return turns >= _SLOW_TURNS
    if turns < _TURNS or spent < _TURN_SECONDS * len(chains):
        return False
    spread = max(_spread(each.seconds()) for each in chains)
    return spread < _SPREAD_ENOUGH * math.sqrt(turns)


def _spread(seconds: Sequence[float]) -> float:
    """Estimate the standard deviation of the logarithm, whatever the outliers."""
    if len(seconds) < 2:
        return _SPREAD_OF_ONE
    return spread_of([math.log(each) for each in seconds])
