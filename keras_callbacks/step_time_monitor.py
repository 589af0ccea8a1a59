"""How long the steps of a `fit` take, and how long in float32.

Steps in both precisions train the model all the same, so that none is wasted: only the
type in which they compute differs. Each that is compared waits for its results, which
hides no work of a device.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Generator
from typing import Any

import tensorflow as tf
from absl import logging

from keras_callbacks import step_functions
from keras_callbacks.callback import Logs, Monitor, never_raising
from keras_callbacks.step_functions import StepFunction, number, steps_up_to, wrapping
from tf_amp.compare.alternation import FEWEST_PAIRS, Verdict, in_turn
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.runtime import enabling, model_scopes, switch
from tf_amp.runtime.scope import mixed_precision_scope

# The first call traces and plans, the second may still fill caches.
_WARM_UPS = 2
_MILLI = 1e3


class Comparison(Verdict):
    """Seconds of neighboring steps in float32 and in mixed precision."""

    __slots__ = ()

    def __str__(self) -> str:
        """Return both medians, the median ratio of pairs, and how far these spread."""
        if len(self.pairs) < FEWEST_PAIRS:
            return f"too few steps to compare ({len(self.pairs)} pairs)"
        ratios = [float32 / mixed for float32, mixed in self.pairs]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return (
            f"{self.seconds_before * _MILLI:.3g} -> {self.seconds_after * _MILLI:.3g} "
            f"ms per step ({self.ratio:.2f}x in the median of {len(self.pairs)} pairs "
            f"of steps, half of them {low:.2f}x to {high:.2f}x)"
        )


class Alternation:
    """A step function that calls two alternately until enough pairs are timed.

    Attributes:
      comparison: what has been measured so far.
      is_done: whether all pairs are timed; the mixed function is called then.
    """

    def __init__(
        self, float32: StepFunction, mixed: StepFunction, pairs: int, steps: int = 1
    ) -> None:
        """Take both functions; one call of a function takes so many steps."""
        self.comparison, self.is_done = Comparison(()), False
        self._mixed, self._steps = mixed, steps

        def has_enough(verdict: Verdict) -> bool:
            self.comparison = Comparison(verdict.pairs)
            return len(verdict.pairs) >= pairs

        def turns() -> Generator[StepFunction, float, None]:
            """Yield what is called next, and receive the seconds of a step in it."""
            for function in (mixed, float32):
                for _ in range(_WARM_UPS):
                    yield function
            yield from in_turn(float32, mixed, has_enough)
            self.is_done = True
            yield mixed

        self._turns = turns()
        self._next = next(self._turns)
        wrapping(self, mixed)

    def __call__(self, *args: Any) -> Any:
        """Take the steps of one call, timed while there are pairs to come."""
        if self.is_done:
            return self._mixed(*args)
        begin = time.perf_counter()
        result = self._next(*args)
        # Reading the results of a step needs all of it.
        for value in tf.nest.flatten(result):
            # What workers are to send has `fetch`.
            read = getattr(value, "numpy", None) or getattr(value, "fetch", None)
            if read is not None:
                read()
        seconds = (time.perf_counter() - begin) / self._steps
        self._next = self._turns.send(seconds)
        return result


# Of an epoch: these may trace, plan and fill caches.
_LEFT_OUT = 2


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """Seconds of steps.

    Attributes:
      seconds: per step, one entry for each call of the training function.
      examples: per step; None where that is not known.
    """

    seconds: tuple[float, ...] = ()
    examples: float | None = None

    def as_logs(self) -> dict[str, float]:
        """Return what goes into the logs; nothing where no step was timed."""
        if not self.seconds:
            return {}
        median, ranked = statistics.median(self.seconds), sorted(self.seconds)
        # 95 of 100 steps stay below.
        p95 = ranked[min(round(0.95 * len(ranked)), len(ranked) - 1)]
        logs = {"step_ms_median": median * _MILLI, "step_ms_p95": p95 * _MILLI}
        if self.examples is not None:
            logs["examples_per_second"] = self.examples / median
        return logs


class StepTimeMonitor(Monitor):
    """Writes `step_ms_median`, `step_ms_p95` and `examples_per_second` into the logs.

    A step lasts from the begin of one batch to that of the next, so reading data
    counts. Left out are the first two steps of each epoch, which may trace and plan,
    and steps that are compared. TensorBoard has the `step_ms` of every step but the
    last of each epoch, which no other one follows.

    Attributes:
      comparison: of steps in float32 and in mixed precision; None where none was asked
        for, or none is possible.
      latest: the steps of the latest epoch.
    """

    def __init__(self, compare: int = 0, *, batch_size: int | None = None) -> None:
        """Say what is to be measured.

        Args:
          compare: how many of the first steps to take in float32, by turns with as many
            in mixed precision; 0 for none.
          batch_size: examples of one step on all devices together; None reads it off
            the loss that the model keeps track of, where it is weighted by examples.

        Raises:
          ConfigError: a number is none of those allowed.
        """
        self._compare = check_count("StepTimeMonitor", "compare", compare, 0)
        if batch_size is not None:
            check_count("StepTimeMonitor", "batch_size", batch_size)
        self._batch_size = batch_size
        self.begin()

    def begin(self) -> None:
        """Forget an earlier run."""
        self.comparison: Comparison | None = None
        self._alternation: Alternation | None = None
        self._is_to_compare = self._compare > 0
        self._begun: list[tuple[int, float]] = []
        self._steps_before = self._compared = 0
        self._writing_s = 0.0
        self.latest = StepTimes()

    @never_raising
    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Begin to count; in the first epoch, to compare."""
        self._begun, self._compared = [], 0
        if not self._is_to_compare:
            return
        self._is_to_compare = False
        mixed = step_functions.current(self.model, "train")
        partner = self.sibling("AutoMixedPrecision")
        is_mixed = enabling.is_enabled() or getattr(partner, "is_active", False)
        if mixed is None or not is_mixed:
            logging.warning(
                "StepTimeMonitor compares nothing: this fit is in float32 anyway."
            )
            return
        layer = mixed_precision_scope(enabled=False).opened()
        model_scopes.undo_after_call(self.model, switch.close_scope)
        fresh = step_functions.fresh(self.model, "train")
        float32 = step_functions.in_layer(fresh, layer)
        self._alternation = Alternation(
            float32, mixed, self._compare, step_functions.steps_per_call(self.model)
        )
        step_functions.put(self.model, "train", self._alternation)

    # It is called in turn even where the end of a batch is not.
    @never_raising
    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Look at the clock, which stands still while a monitor writes."""
        if self._alternation is not None and not self._alternation.is_done:
            self._compared = len(self._begun) + 1
        now = time.perf_counter()
        self._begun.append((batch, now - self._writing_s))
        if self._summaries.are_wanted and len(self._begun) > 1:
            (seconds,) = _seconds_of(self._begun[-2:])
            scalars = {"step_ms": seconds * _MILLI}
            self._summaries.add_step(self._steps_before + batch, lambda: scalars)
            self._writing_s += time.perf_counter() - now

    @never_raising
    def on_test_begin(self, logs: Logs = None) -> None:
        """Read what the validation within an epoch resets."""
        self._end_steps()

    @never_raising
    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Write the times of the epoch into its logs."""
        self._end_steps()
        if self._alternation is not None:
            self.comparison = self._alternation.comparison
        written = self.latest.as_logs()
        if logs is not None:
            logs.update(written)
        self._summaries.write(written, epoch)

    def _end_steps(self) -> None:
        if not self._begun:
            return
        self._summaries.write_steps()
        begun, self._begun = self._begun, []
        last = begun[-1][0] + step_functions.steps_per_call(self.model) - 1
        steps = steps_up_to(last, self.params)
        self._steps_before += steps
        seconds = _seconds_of(begun)
        left_out = max(_LEFT_OUT, self._compared)
        # An epoch that is all of these still has steps.
        kept = seconds[left_out:] or seconds[_LEFT_OUT:] or seconds
        self.latest = StepTimes(tuple(kept), self._examples_per_step(steps))

    def _examples_per_step(self, steps: int) -> float | None:
        """Return the batch size, by what the model's loss was averaged over so far."""
        if self._batch_size is not None:
            return float(self._batch_size)
        metrics = getattr(self.model, "metrics", ())
        losses = (each for each in metrics if getattr(each, "name", "") == "loss")
        counts = (getattr(loss, "count", None) for loss in losses)
        counted = next((number(each) for each in counts if each is not None), 0.0)
        # A loss that is averaged over steps counts these instead.
        if counted > steps:
            return counted / steps
        logging.log_first_n(
            logging.WARNING,
            "StepTimeMonitor: the model does not count examples; examples_per_"
            "second takes StepTimeMonitor(batch_size=...).",
            1,
        )
        return None


def _seconds_of(begun: list[tuple[int, float]]) -> list[float]:
    """Return the seconds of a step in each call (batch, begin) that one follows."""
    pairs = itertools.pairwise(begun)
    return [(b - a) / max(last - first, 1) for (first, a), (last, b) in pairs]
