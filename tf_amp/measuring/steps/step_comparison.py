"""Let a program's own steps tell whether 16 bits are faster.

TensorFlow keeps several instances of one function, distinguished by the options of its
calls, and a Session several of one graph (`compared_calls`). While a plan is in doubt,
calls alternate between the instance that is rewritten and one that is not, in blocks of
a few calls, on the same variables and data: nothing is copied, nothing is made up, and
every call is a step of the program.

  call      1..4     5 6       7 8   9 10   11 12   13 14 ...
  instance  16 bits  float32   16    32     32      16
            not counted        |   pair    |    pair    | ...

A plan whose gain may well be none comes in after four calls in float32. So the prices
decide for a function that is called no more often than that.

Not counted are the first calls of each instance, which prepare kernels, and the first
call of each block, which finds the caches as the other instance has left them. How many
pairs decide is said in `comparison`: 6 to 60, or what they lean to once their calls
have taken 60 s. The loser is not called again. TensorFlow frees its kernels with the
function.

Where prices of the plan are still to be learned (`verdicts`), a few more calls of each
instance are profiled, in turn.

Workers that train in step alternate at the same calls, since blocks have the same
length there. The chief decides; all go by what it has decided a pair of blocks before,
so that nobody waits for a call that waits for it. What no worker hears of the chief
ends the comparison with the plan that was begun with. Errors are the program's.

What raises an error that is of the instance's own making (no kernel) in one of its
first calls loses, and the call is repeated in the other one; so does what finds no
memory in any call that is compared.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf
from absl import logging

from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private.profiles import profiled
from tf_amp.config.devices import present_devices
from tf_amp.measuring.steps.comparison import FEWEST_PAIRS, Comparison

# Seconds that calls of a comparison take together, after which it ends.
MOST_SECONDS = 60.0
# Calls in 16 bits before the first one in float32: most functions are called less.
_CALLS_BEFORE = 4
_WARM_UPS = 2
# A block takes about so long, and no more calls than that.
_BLOCK_SECONDS, _MOST_CALLS = 0.05, 10
# Of workers that train in step.
_SHARED_CALLS = 3
# Of each instance: no single reading is believed, and one may be disturbed.
PROFILED_CALLS = 4
# Labels of the instances; TensorFlow's own is the one that is made first. It is float32
# where 16 bits come in late.
MIXED, LATE, FLOAT32 = "", "16 bits", "float32"
LABELS = (MIXED, LATE, FLOAT32)

# Errors that may be an instance's own, and not the program's.
OWN_FAULTS = (
    tf.errors.ResourceExhaustedError,
    tf.errors.UnimplementedError,
    tf.errors.InternalError,
)

# Two instances take more memory than one, whenever it is that there is none.
_OWN_ALWAYS = tf.errors.ResourceExhaustedError

# Of one call, by name and op of the node that they are of.
Seconds = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Steps:
    """What the steps of a comparison have shown.

    Attributes:
      compared: their times; None where an instance failed.
      float32: of each profiled call in float32, the seconds of nodes.
      mixed: the same in 16 bits.
    """

    compared: Comparison | None = None
    float32: Sequence[Seconds] = ()
    mixed: Sequence[Seconds] = ()


# Called with whether 16 bits were faster, and what was measured.
Decided = Callable[[bool, Steps], None]


class Agreement(Protocol):
    """What several workers decide together."""

    def verdict(self, pairs: int, is_faster: bool | None) -> bool | None:
        """Return whether 16 bits are faster for all; None: the comparison goes on.

        Asked after each pair of blocks from `FEWEST_PAIRS` on.

        Args:
          pairs: how many there have been.
          is_faster: what is decided here.
        """


class StepComparison:
    """The calls of one function while its plan is in doubt.

    Several threads may call the function; one of them at a time is timed.

    Attributes:
      learns: whether calls are profiled in the end; those of workers are not.
    """

    def __init__(self, name: str = "", *, is_late: bool = False) -> None:
        """Begin to compare a plan.

        Args:
          name: of what is called, for people.
          is_late: whether calls before the comparison run in float32.
        """
        self.name = name
        self.mixed = LATE if is_late else MIXED
        self.learns = False
        self._seconds = 0.0
        self._decided: list[Decided] = []
        self._agreement: Agreement | None = None
        self._profiles: list[Seconds] | None = None
        self._timing = renewed_lock()
        self._course = self._compared()
        self._next = next(self._course)
        self._counts: Counter[str] = Counter()
        self.is_faster: bool | None = None

    def when_decided(self, decided: Decided) -> None:
        """Call a function with the verdict; on the thread of the call."""
        self._decided.append(decided)

    @property
    def is_shared(self) -> bool:
        """Whether it is that of several workers."""
        return self._agreement is not None

    def share(self, agreement: Agreement) -> None:
        """Let workers decide together; to be called during the first call."""
        self._agreement = agreement

    def run(self, call: Callable[[str], Any]) -> Any:
        """Make a call, given its label, in the instance whose turn it is."""
        if self.is_faster is None:
            with self._timing.taken_if_free() as is_free:
                if is_free:
                    return self._timed(call)
        return call(self.winner)

    @property
    def winner(self) -> str:
        """The label of what runs from now on; undecided, of the plan."""
        return FLOAT32 if self.is_faster is False else self.mixed

    def decide(self, is_faster: bool, steps: Steps) -> None:
        """End with what the steps of a caller have shown."""
        if self.is_faster is None:
            self._decide(is_faster, steps)

    def _timed(self, call: Callable[[str], Any]) -> Any:
        label = self._next
        begin = time.perf_counter()
        try:
            if self._profiles is None:
                outputs = call(label)
            else:
                outputs, seconds = profiled(lambda: call(label))
                self._profiles.append(seconds)
            wait_for_devices()
        except OWN_FAULTS as error:
            is_own = self._counts[label] < _WARM_UPS or isinstance(error, _OWN_ALWAYS)
            if self.is_shared or label not in (self.mixed, FLOAT32) or not is_own:
                raise
            return self._without(label, call)
        self._counts[label] += 1
        self._advance(time.perf_counter() - begin)
        return outputs

    def failed(self, call: Callable[[str], Any]) -> Any:
        """Make the first call anew, in float32, since 16 bits have raised an error."""
        return self._without(self.mixed, call)

    def _without(self, label: str, call: Callable[[str], Any]) -> Any:
        """Decide against an instance that cannot be run, and call the other one."""
        other = FLOAT32 if label == self.mixed else self.mixed
        outputs = call(other)
        self._decide(label == FLOAT32, Steps())
        return outputs

    def _advance(self, seconds: float) -> None:
        has_begun = self.mixed == LATE and self._counts[LATE] > 0
        if self.is_faster is None and has_begun and not self._decided:
            # The plan has not come again.
            self._decide(False, Steps())
        if self.is_faster is not None:
            return
        self._seconds += seconds
        try:
            self._next = self._course.send(seconds)
        except StopIteration as end:
            self._decide(*end.value)

    def _decide(self, is_faster: bool, steps: Steps) -> None:
        self.is_faster = is_faster
        for decided in self._decided:
            try:
                decided(is_faster, steps)
            except Exception as error:
                logging.warning(
                    "What the steps of %s have shown is not remembered (%s: %s). The "
                    "next process compares them again, unless TF_AMP_TUNE=off.",
                    self.name or "a graph",
                    type(error).__name__,
                    error,
                )
        self._decided.clear()

    def _compared(self) -> Generator[str, float, tuple[bool, Steps]]:
        """Yield the instance of each call and receive what it took."""
        is_faster, compared = yield from self._pairs()
        if self.is_shared or not self.learns:
            return is_faster, Steps(compared)
        self._profiles = []
        for _ in range(PROFILED_CALLS):
            yield FLOAT32
            yield self.mixed
        return is_faster, Steps(compared, self._profiles[::2], self._profiles[1::2])

    def _pairs(self) -> Generator[str, float, tuple[bool, Comparison]]:
        took: dict[str, float] = {}
        warm_ups = [FLOAT32] * _WARM_UPS
        if self.mixed == LATE:
            warm_ups = [self.mixed] * _WARM_UPS + warm_ups
        for label in [MIXED] * (_CALLS_BEFORE - 1) + warm_ups:
            took[label] = yield label
        count = min(math.ceil(_BLOCK_SECONDS / max(took.values())), _MOST_CALLS)
        count = _SHARED_CALLS if self.is_shared else count
        pairs: list[tuple[float, float]] = []
        self._seconds = 0.0
        while True:
            order = (FLOAT32, self.mixed) if len(pairs) % 2 else (self.mixed, FLOAT32)
            for label in order:
                took[label] = yield from self._block(label, count)
            pairs.append((took[FLOAT32], took[self.mixed]))
            compared = Comparison(tuple(pairs))
            if len(pairs) < FEWEST_PAIRS:
                continue
            is_late = self._seconds > MOST_SECONDS
            is_faster = compared.leans_faster if is_late else compared.is_faster
            if self._agreement is not None:
                is_faster = self._agreement.verdict(len(pairs), is_faster)
            if is_faster is not None:
                return is_faster, compared

    def _block(self, label: str, count: int) -> Generator[str, float, float]:
        """Yield some calls of one instance and return what one of them takes."""
        if count > 1:
            yield label
        seconds = []
        for _ in range(count):
            seconds.append((yield label))
        return statistics.median(seconds)


def wait_for_devices() -> None:
    """Wait for what a call has left to a device to finish; a Session leaves nothing."""
    if tf.executing_eagerly() and _has_other_devices():
        tf.test.experimental.sync_devices()


def _has_other_devices() -> bool:
    """Return whether work is left to devices that it must be awaited from."""
    return any(device.device_type != "CPU" for device in present_devices())
