"""Steps of one `fit` taken in float32 and in mixed precision by turns.

Both train the model all the same, so that no step is wasted: only the type in which
they compute differs. Each waits for its results, which hides no work of a device.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from keras_callbacks.running_fit.step_functions import StepFunction, wrapping

_FEWEST_PAIRS = 3
# The first call traces and plans, the second may still fill caches.
_WARM_UPS = 2
_MILLI = 1e3


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Seconds of neighboring steps in both precisions.

    Attributes:
      pairs: seconds in float32 and in mixed precision.
    """

    pairs: tuple[tuple[float, float], ...] = ()

    @property
    def float32_seconds(self) -> float:
        """Median seconds of a step in float32."""
        return statistics.median(float32 for float32, _ in self.pairs)

    @property
    def mixed_seconds(self) -> float:
        """Median seconds of a step in mixed precision."""
        return statistics.median(mixed for _, mixed in self.pairs)

    @property
    def speedup(self) -> float:
        """How many times as fast the median step is in mixed precision."""
        return self.float32_seconds / self.mixed_seconds

    def __str__(self) -> str:
        """Return both medians, their ratio, and how far single pairs spread."""
        if len(self.pairs) < _FEWEST_PAIRS:
            return f"too few steps to compare ({len(self.pairs)} pairs)"
        ratios = [float32 / mixed for float32, mixed in self.pairs]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return (
            f"{self.float32_seconds * _MILLI:.3g} -> {self.mixed_seconds * _MILLI:.3g} "
            f"ms per step ({self.speedup:.2f}x; {len(self.pairs)} pairs of steps, half "
            f"of them {low:.2f}x to {high:.2f}x)"
        )


class Alternation:
    """Calls two step functions by turns until enough pairs are timed."""

    def __init__(
        self, float32: StepFunction, mixed: StepFunction, pairs: int, steps: int = 1
    ) -> None:
        """Take both functions; the mixed one is called when all pairs are timed.

        One call of a function takes so many steps.
        """
        self._functions = {"float32": float32, "mixed": mixed}
        self._wanted = pairs
        self._steps = steps
        self._turns = _turns(pairs)
        self._took: dict[str, float] = {}
        self._pairs: list[tuple[float, float]] = []

    @property
    def comparison(self) -> Comparison:
        """What has been measured so far."""
        return Comparison(tuple(self._pairs))

    @property
    def is_done(self) -> bool:
        """Whether all pairs are timed."""
        return len(self._pairs) >= self._wanted

    def step_function(self) -> StepFunction:
        """Return the function to train with."""

        def call_by_turns(*args: Any) -> Any:
            name, is_timed = next(self._turns, ("mixed", False))
            begin = time.perf_counter()
            result = self._functions[name](*args)
            if is_timed:
                _wait_for(result)
                self._took[name] = (time.perf_counter() - begin) / self._steps
            if len(self._took) == len(self._functions):
                self._pairs.append((self._took["float32"], self._took["mixed"]))
                self._took = {}
            return result

        return wrapping(call_by_turns, self._functions["mixed"])


def _turns(pairs: int) -> Iterator[tuple[str, bool]]:
    """Yield which function is to be called, and whether that is timed."""
    for name in ("mixed", "float32"):
        yield from [(name, False)] * _WARM_UPS
    for number in range(pairs):
        order = ("mixed", "float32") if number % 2 else ("float32", "mixed")
        yield from ((name, True) for name in order)


def _wait_for(result: Any) -> None:
    """Wait until a step is done: reading its results needs all of it."""
    for value in tf.nest.flatten(result):
        # What workers are to send has `fetch`.
        read = getattr(value, "numpy", None) or getattr(value, "fetch", None)
        if read is not None:
            read()
