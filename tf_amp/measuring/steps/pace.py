"""When a call may take longer than a step in float32: seldom enough not to be noticed.

    16 bits take    1.05 times as long    1.2     1.45    2
    of 20 calls     any may be            4       2       1

So twenty calls in a row take at most a twentieth longer than in float32, or one of them
does.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Hashable

# So many calls in a row may take so much longer than in float32, in steps of it: by
# less than a twentieth.
_CALLS, _MOST_EXCESS = 20, 0.9
# What a call takes is the median of so many.
_TIMES = 21


class Pace:
    """Knows what kinds of calls take, and how many slow ones there have been lately."""

    def __init__(self, calm: Hashable) -> None:
        """Measure by calls of one kind, those in float32."""
        self._calm = calm
        self._times: dict[Hashable, deque[float]] = defaultdict(
            lambda: deque(maxlen=_TIMES)
        )
        self._recent: deque[float] = deque([0.0], maxlen=_CALLS - 1)

    @property
    def seconds(self) -> float:
        """What a call in float32 takes; 0 while that is not known."""
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
