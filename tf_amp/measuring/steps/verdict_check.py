"""Look at a remembered verdict again while the first steps of its winner run.

It was found by an earlier process, perhaps while the machine did other things, or
before something in it changed. The winner's calls 5 to 20 are timed, and nothing after
them. Their median contradicts the verdict if it is longer than what the slower of both
instances took then, beyond the noise: by more than 10 %, by which a process differs
from the next one, and three standard errors of the median's logarithm. Then both are
compared anew.

    a step then   float32 ------------|   16 bits ------|
    now           16 bits -----------------|: longer than either, so the other may win
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from grappler_pass.costs.database.records import Verdict
from grappler_pass.fork_safety import renewed_lock
from tf_amp.measuring.steps.comparison import error_of_median
from tf_amp.measuring.steps.step_comparison import MIXED, Decided, wait_for_devices

# The first of all calls, in which the verdict is found, is not seen.
_NOT_TIMED, _TIMED = 3, 16
_APART, _DEVIATIONS = 0.1, 3.0


class VerdictCheck:
    """The first calls of a function whose faster instance is remembered.

    Attributes:
      decided: called with the outcome, should both be compared anew.
      is_over: whether enough calls were timed.
    """

    def __init__(self, verdict: Verdict, contradicted: Callable[[], None]) -> None:
        """Begin with calls that are not timed; call `contradicted` once they do."""
        self.decided: list[Decided] = []
        self.is_over = False
        self._verdict = verdict
        self._contradicted = contradicted
        self._seconds: list[float] = []
        self._timing = renewed_lock()

    def run(self, call: Callable[[str], Any]) -> Any:
        """Make a call of the function, and time it if no other thread's is."""
        with self._timing.taken_if_free() as is_free:
            if self.is_over or not is_free:
                return call(MIXED)
            begin = time.perf_counter()
            outputs = call(MIXED)
            wait_for_devices()
            self._seconds.append(time.perf_counter() - begin)
            self.is_over = len(self._seconds) == _NOT_TIMED + _TIMED
        if self.is_over and contradicts(self._seconds[_NOT_TIMED:], self._verdict):
            self._contradicted()
        return outputs


def contradicts(seconds: list[float], verdict: Verdict) -> bool:
    """Return whether steps of the winner take longer than either instance did."""
    slower = max(verdict.seconds_before, verdict.seconds_after)
    logs = [math.log(each / slower) for each in seconds]
    return statistics.median(logs) > _APART + _DEVIATIONS * error_of_median(logs)
