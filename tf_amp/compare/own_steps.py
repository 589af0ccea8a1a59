"""Let a program's own steps tell whether 16 bits are faster.

TensorFlow keeps several instances of one function, distinguished by the options of its
calls, and a Session several of one graph (`call_sites`). While a plan is in doubt,
calls alternate between the instance that is rewritten and one that is not, on the same
variables and data: nothing is copied, nothing is made up, and every call is a step of
the program.

  call      1..4     5 6       7  8    9  10   11 12
  instance  16 bits  float32   16 32   32 16   16 32 ...
            not counted        pair    pair    pair

A plan whose gain is not sure comes in after twenty calls in float32, TensorFlow's own
instance. So prices decide for a function that is called no more often than that.

  call      1..20    21 22     23 24
  instance  float32  16 bits   16 32 ...

Not counted are the first calls of each instance, which prepare kernels. How many pairs
decide is said in `alternation`: 3 to 12, or what they lean to once they have taken 60
s. With what is profiled, the loser is called at most twenty times: a comparison costs
at most twenty times what its steps differ by. It is not called again after that.
TensorFlow frees its kernels with the function.

Calls that take longer than float32's are spread (`Pace`), so that twenty calls in a row
take hardly longer than in float32.

Where prices of the plan are still to be learned (`verdicts`), a few more calls of each
instance are profiled, in turn and as rarely; the verdict is known by then.

Workers that train in step alternate at the same calls, which nothing measured moves.
The chief decides; all follow what it has decided a pair before, so that none waits
for a call that waits for it. What no worker hears of the chief ends the comparison with
the plan that was begun with. Errors are the program's.

What raises an error that is of the instance's own making (no kernel) in one of its
first calls loses, and the call is repeated in the other one; so does what finds no
memory in any call that is compared.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private.profiles import profiled
from tf_amp.compare.alternation import FEWEST_PAIRS, Pace, Verdict, in_turn
from tf_amp.config.devices import present_devices

# Seconds that pairs take together, after which a comparison ends.
MOST_SECONDS = 60.0
# Calls before the first one of the other instance: most functions are called less. In
# 16 bits, where prices are sure of them, and in float32.
_CALLS_BEFORE, CALLS_IN_FLOAT32 = 4, 20
_WARM_UPS = 2
# Of each instance: no single reading is believed, and one may be disturbed.
PROFILED_CALLS = 4
# A profile is taken to last as long as this share of a step until one has been; what
# is shorter has no kernel that the profiler could tell.
_PROFILE_STEPS, _LEAST_PROFILED_SECONDS = 0.5, 2e-3
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


class Turn(NamedTuple):
    """The next call: the instance of a label, and how it is timed.

    Attributes:
      label: of the instance.
      is_profiled: whether its nodes are timed, too.
      is_awaited: whether the devices are to be done before the next call.
    """

    label: str
    is_profiled: bool = False
    is_awaited: bool = True


@dataclasses.dataclass(frozen=True)
class Steps:
    """Measurements of a comparison.

    Attributes:
      compared: their times; None where an instance failed.
      float32: of each profiled call in float32, the seconds of nodes.
      mixed: the same in 16 bits.
    """

    compared: Verdict | None = None
    float32: Sequence[Seconds] = ()
    mixed: Sequence[Seconds] = ()


# Called with whether 16 bits were faster, and what was measured.
Decided = Callable[[bool, Steps], None]
# Called with what profiled calls have taken, after the verdict.
Profiled = Callable[[Steps], None]


# A decision that several workers make together: whether 16 bits are faster for all,
# None if the comparison goes on. It is asked after each pair from `FEWEST_PAIRS` on,
# with how many there have been, and what is decided here.
Agreement = Callable[[int, "bool | None"], "bool | None"]


class StepComparison:
    """The calls at one site while its plan is in doubt.

    Several threads may call the function; one of them at a time is timed, the others
    call TensorFlow's own instance until there is a verdict.

    Attributes:
      name: of what is called, human-readable.
      mixed: the label of the instance in 16 bits.
      float32: that of the other.
      meanwhile: that of what runs until it is decided.
      is_faster: whether 16 bits are; None while that is not decided.
      last_call: when, by the monotonic clock.
    """

    def __init__(
        self,
        name: str = "",
        *,
        is_late: bool = False,
        labels: tuple[str, str] | None = None,
    ) -> None:
        """Begin to compare a plan.

        Args:
          name: of what is called, human-readable.
          is_late: whether calls before the comparison run in float32.
          labels: of other instances than those in 16 bits and in float32: of one that
            may be faster, and of the one that runs meanwhile.
        """
        self.name = name
        own = (LATE, MIXED) if is_late else (MIXED, FLOAT32)
        self.mixed, self.float32 = labels or own
        self.meanwhile = labels[1] if labels else MIXED
        self.is_faster: bool | None = None
        self.last_call = time.monotonic()
        self._decided: list[Decided] = []
        self._learners: list[Profiled] = []
        self._agreement: Agreement | None = None
        self._profiles: dict[str, list[Seconds]] = {self.mixed: [], self.float32: []}
        self._timing = renewed_lock()
        self._pace = Pace(Turn(self.float32))
        self._counts: Counter[str] = Counter()
        self._course = self._turns()
        self._next: Turn | None = next(self._course)

    def when_decided(self, decided: Decided) -> None:
        """Call a function with the verdict; on the thread of the call."""
        self._decided.append(decided)

    def when_profiled(self, learn: Profiled) -> None:
        """Profile calls once there is a verdict; not those of workers."""
        self._learners.append(learn)

    @property
    def is_late(self) -> bool:
        """True if calls before the comparison run in float32."""
        return self.mixed == LATE

    @property
    def is_over(self) -> bool:
        """True if all calls are the winner's from now on."""
        return self._next is None

    @property
    def is_shared(self) -> bool:
        """True if it is that of several workers."""
        return self._agreement is not None

    def share(self, agreement: Agreement) -> None:
        """Let workers decide together; to be called during the first call."""
        self._agreement = agreement

    @property
    def winner(self) -> str:
        """The label of what runs from now on."""
        if self.is_faster is None:
            return self.meanwhile
        return self.float32 if self.is_faster is False else self.mixed

    def decide(self, is_faster: bool, steps: Steps) -> None:
        """End, unless that is decided, with what the steps of a caller have shown."""
        if self.is_faster is None:
            self._end_course()
            self._decide(is_faster, steps)

    def run(self, call: Callable[[str], Any]) -> Any:
        """Make a call, given its label, in the instance whose turn it is."""
        if not self.is_over:
            self.last_call = time.monotonic()
            with self._timing.taken_if_free() as is_free:
                if is_free and (turn := self._next) is not None:
                    return self._timed(call, turn)
        return call(self.winner)

    def _timed(self, call: Callable[[str], Any], turn: Turn) -> Any:
        label = turn.label
        begin = time.perf_counter()
        try:
            if turn.is_profiled:
                outputs, seconds = profiled(lambda: call(label))
                self._profiles[label].append(seconds)
            else:
                outputs = call(label)
            if turn.is_awaited:
                wait_for_devices()
        except tf.errors.OpError as error:
            if not self._is_own_fault(label, error):
                raise
            return self.without(label, call)
        taken = time.perf_counter() - begin
        self._counts[label] += 1
        if self.is_faster is None and self._counts[LATE] and not self._decided:
            # The plan has not come again.
            self.decide(False, Steps())
        if not self.is_over:
            if self._counts[label] > 1 or label == self.meanwhile:
                self._pace.note(turn, taken)
            try:
                self._next = self._course.send(taken)
            except StopIteration:
                self._end_course()
        return outputs

    def _is_own_fault(self, label: str, error: tf.errors.OpError) -> bool:
        """Return whether an error is the instance's own, and not the program's."""
        is_early = self._counts[label] < _WARM_UPS
        # A late comparison begins with the program's own calls in float32.
        has_begun = not self.is_late or self._counts[LATE] > 0 or label == LATE
        is_own = isinstance(error, OWN_FAULTS) and is_early
        is_own = is_own or isinstance(error, _OWN_ALWAYS)
        return not self.is_shared and has_begun and is_own

    def without(self, label: str, call: Callable[[str], Any]) -> Any:
        """Decide against an instance that cannot be run, and call the other one."""
        other = self.float32 if label == self.mixed else self.mixed
        outputs = call(other)
        self._end_course()
        self._decide(label == self.float32, Steps())
        return outputs

    def _end_course(self) -> None:
        self._next = None
        # They hold what is known of the graphs.
        self._learners.clear()

    def _decide(self, is_faster: bool, steps: Steps) -> None:
        self.is_faster = is_faster
        for decided in self._decided:
            self._tell(decided, is_faster, steps)
        self._decided.clear()

    def _tell(self, hears: Callable[..., None], *shown: Any) -> None:
        try:
            hears(*shown)
        except Exception as error:
            logging.warning(
                "What the steps of %s have shown is not remembered (%s: %s). The "
                "next process compares them again, unless TF_AMP_TUNE=off.",
                self.name or "a graph",
                type(error).__name__,
                error,
            )

    def _turns(self) -> Generator[Turn, float, None]:
        """Yield the instance of each call and receive what it took."""
        # One has been made.
        for _ in range((CALLS_IN_FLOAT32 if self.is_late else _CALLS_BEFORE) - 1):
            yield Turn(self.meanwhile)
        other = self.float32 if self.meanwhile == self.mixed else self.mixed
        for _ in range(_WARM_UPS):
            yield Turn(other)
        outcome: bool | None = None

        def is_clear(verdict: Verdict) -> bool:
            nonlocal outcome
            if (count := len(verdict.pairs)) >= FEWEST_PAIRS:
                is_late = sum(map(sum, verdict.pairs)) > MOST_SECONDS
                outcome = verdict.leans_faster if is_late else verdict.is_faster
                if self._agreement is not None:
                    outcome = self._agreement(count, outcome)
            return outcome is not None

        mixed = Turn(self.mixed)
        verdict = yield from in_turn(
            Turn(self.float32), mixed, is_clear, lambda: self._may_come(mixed)
        )
        assert outcome is not None, "it is clear by then"
        self._decide(outcome, Steps(verdict))
        is_long = self._pace.seconds >= _LEAST_PROFILED_SECONDS
        if self._learners and is_long and not self.is_shared:
            yield from self._profiled_calls()

    def _may_come(self, turn: Turn, further: float = 0.0) -> bool:
        """Return whether a call may take as long as it does, and so many steps more.

        Workers do not wait, whose times differ.
        """
        return self.is_shared or self._pace.allows(self._pace.excess(turn) + further)

    def _profiled_calls(self) -> Generator[Turn, float, None]:
        """Profile calls of both in turn, and report what they took."""
        further = _PROFILE_STEPS
        for _ in range(PROFILED_CALLS):
            for label in (self.float32, self.mixed):
                turn = Turn(label)
                while not self._may_come(turn, further):
                    yield Turn(self.winner)
                seconds = yield turn._replace(is_profiled=True)
                excess = seconds / self._pace.seconds - 1.0
                further = max(0.0, excess - self._pace.excess(turn))
        steps = Steps(None, self._profiles[self.float32], self._profiles[self.mixed])
        for learn in self._learners:
            self._tell(learn, steps)


def wait_for_devices() -> None:
    """Wait for what a call has left to a device to finish; a Session leaves nothing."""
    if tf.executing_eagerly() and _has_other_devices():
        tf.test.experimental.sync_devices()


def _has_other_devices() -> bool:
    """Return whether work is left to devices that it must be awaited from."""
    return any(device.device_type != "CPU" for device in present_devices())
