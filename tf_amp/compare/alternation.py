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
decide is said in `comparison`: 3 to 12, or what they lean to once they have taken 60 s.
With what is profiled, the loser is called at most twenty times: a comparison costs at
most twenty times what its steps differ by. It is not called again after that.
TensorFlow frees its kernels with the function.

Calls that take longer than float32's are spread (`pace`), so that twenty calls in a row
take hardly longer than in float32.

Where prices of the plan are still to be learned (`verdicts`), a few more calls of each
instance are profiled, in turn and as rarely; the verdict is known by then.

Workers that train in step alternate at the same calls, which nothing measured moves.
The chief decides; all go by what it has decided a pair before, so that nobody waits
for a call that waits for it. What no worker hears of the chief ends the comparison with
the plan that was begun with. Errors are the program's.

What raises an error that is of the instance's own making (no kernel) in one of its
first calls loses, and the call is repeated in the other one; so does what finds no
memory in any call that is compared.

Times of float32 and of 16 bits, run in turn, and which of them is faster.

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
`tests/tf_amp/compare/test_comparison.py` repeats it.

When a call may take longer than a step in float32: seldom enough not to be noticed.

    16 bits take    1.05 times as long    1.2     1.45    2
    of 20 calls     any may be            4       2       1

So twenty calls in a row take at most a twentieth longer than in float32, or one of them
does.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf
from absl import logging

from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private.profiles import profiled
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
    """What is called next: the instance of a label, and whether that is profiled."""

    label: str
    is_profiled: bool = False


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
# Called with what profiled calls have taken, after the verdict.
Profiled = Callable[[Steps], None]


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

    Several threads may call the function; one of them at a time is timed, the others
    call TensorFlow's own instance until there is a verdict.

    Attributes:
      name: of what is called, for people.
      mixed: the label of the instance in 16 bits.
      float32: that of the other.
      is_faster: whether 16 bits are; None while that is not decided.
    """

    def __init__(self, name: str = "", *, is_late: bool = False) -> None:
        """Begin to compare a plan.

        Args:
          name: of what is called, for people.
          is_late: whether calls before the comparison run in float32.
        """
        self.name = name
        self.mixed, self.float32 = (LATE, MIXED) if is_late else (MIXED, FLOAT32)
        self.is_faster: bool | None = None
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
        """Whether calls before the comparison run in float32."""
        return self.mixed == LATE

    @property
    def is_over(self) -> bool:
        """Whether all calls are the winner's from now on."""
        return self._next is None

    @property
    def is_shared(self) -> bool:
        """Whether it is that of several workers."""
        return self._agreement is not None

    def share(self, agreement: Agreement) -> None:
        """Let workers decide together; to be called during the first call."""
        self._agreement = agreement

    def run(self, call: Callable[[str], Any]) -> Any:
        """Make a call, given its label, in the instance whose turn it is."""
        if not self.is_over:
            with self._timing.taken_if_free() as is_free:
                if is_free and (turn := self._next) is not None:
                    return self._timed(call, turn)
        return call(self.winner)

    @property
    def winner(self) -> str:
        """The label of what runs from now on; undecided, of TensorFlow's own."""
        if self.is_faster is None:
            return MIXED
        return self.float32 if self.is_faster is False else self.mixed

    def decide(self, is_faster: bool, steps: Steps) -> None:
        """End with what the steps of a caller have shown."""
        if self.is_faster is None:
            self._end(is_faster, steps)

    def _timed(self, call: Callable[[str], Any], turn: Turn) -> Any:
        label = turn.label
        begin = time.perf_counter()
        try:
            if turn.is_profiled:
                outputs, seconds = profiled(lambda: call(label))
                self._profiles[label].append(seconds)
            else:
                outputs = call(label)
            wait_for_devices()
        except OWN_FAULTS as error:
            is_own = self._counts[label] < _WARM_UPS or isinstance(error, _OWN_ALWAYS)
            if self.is_shared or self._is_waiting or not is_own:
                raise
            return self._without(label, call)
        self._counts[label] += 1
        self._advance(turn, time.perf_counter() - begin)
        return outputs

    @property
    def _is_waiting(self) -> bool:
        """Whether it is yet to begin, with the program's own calls in float32."""
        is_next = self._next is not None and self._next.label == LATE
        return self.is_late and not self._counts[LATE] and not is_next

    def failed(self, call: Callable[[str], Any]) -> Any:
        """Make the first call anew, in float32, since 16 bits have raised an error."""
        return self._without(self.mixed, call)

    def _without(self, label: str, call: Callable[[str], Any]) -> Any:
        """Decide against an instance that cannot be run, and call the other one."""
        other = self.float32 if label == self.mixed else self.mixed
        outputs = call(other)
        self._end(label == self.float32, Steps())
        return outputs

    def _advance(self, turn: Turn, seconds: float) -> None:
        if self.is_faster is None and self._counts[LATE] and not self._decided:
            # The plan has not come again.
            self._end(False, Steps())
        if self.is_over:
            return
        if self._counts[turn.label] > 1 or turn.label == MIXED:
            self._pace.note(turn, seconds)
        self._next = next_of(self._course, seconds)

    def _end(self, is_faster: bool, steps: Steps) -> None:
        self._next = None
        self._decide(is_faster, steps)

    def _decide(self, is_faster: bool, steps: Steps) -> None:
        self.is_faster = is_faster
        for decided in self._decided:
            self._remember(functools.partial(decided, is_faster, steps))
        self._decided.clear()

    def _remember(self, remember: Callable[[], None]) -> None:
        try:
            remember()
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
            yield Turn(MIXED)
        for _ in range(_WARM_UPS):
            yield Turn(LATE if self.is_late else FLOAT32)
        is_faster, compared = yield from self._pairs()
        self._decide(is_faster, Steps(compared))
        is_long = self._pace.seconds >= _LEAST_PROFILED_SECONDS
        if self._learners and is_long and not self.is_shared:
            yield from self._profiled_calls()

    def _pairs(self) -> Generator[Turn, float, tuple[bool, Comparison]]:
        pairs: list[tuple[float, float]] = []
        while True:
            pairs.append((yield from self._pair(is_first=len(pairs) % 2 == 0)))
            compared = Comparison(tuple(pairs))
            if len(pairs) < FEWEST_PAIRS:
                continue
            is_late = sum(map(sum, pairs)) > MOST_SECONDS
            is_faster = compared.leans_faster if is_late else compared.is_faster
            if self._agreement is not None:
                is_faster = self._agreement.verdict(len(pairs), is_faster)
            if is_faster is not None:
                return is_faster, compared

    def _pair(self, *, is_first: bool) -> Generator[Turn, float, tuple[float, float]]:
        """Return seconds in float32 and in 16 bits, which may come first."""
        float32 = [] if is_first else [(yield Turn(self.float32))]
        float32 += yield from self._until_allowed(Turn(self.mixed), self.float32)
        mixed = yield Turn(self.mixed)
        if not float32:
            float32.append((yield Turn(self.float32)))
        return statistics.median(float32), mixed

    def _until_allowed(
        self, turn: Turn, calm: str, beside: float = 0.0
    ) -> Generator[Turn, float, list[float]]:
        """Make other calls until one may take as long as it does, and that `beside`.

        Return what they took. Workers do not wait, whose times differ.
        """
        taken: list[float] = []
        while not (
            self.is_shared or self._pace.allows(self._pace.excess(turn) + beside)
        ):
            taken.append((yield Turn(calm)))
        return taken

    def _profiled_calls(self) -> Generator[Turn, float, None]:
        """Profile calls of both in turn, and hand on what was found."""
        beside = _PROFILE_STEPS
        for _ in range(PROFILED_CALLS):
            for label in (self.float32, self.mixed):
                turn = Turn(label)
                yield from self._until_allowed(turn, self.winner, beside)
                seconds = yield turn._replace(is_profiled=True)
                excess = seconds / self._pace.seconds - 1.0
                beside = max(0.0, excess - self._pace.excess(turn))
        steps = Steps(None, self._profiles[self.float32], self._profiles[self.mixed])
        for learn in self._learners:
            self._remember(functools.partial(learn, steps))


def next_of(course: Generator[Turn, float, None], seconds: float) -> Turn | None:
    """Return what comes after a call that took so long; None at the end."""
    try:
        return course.send(seconds)
    except StopIteration:
        return None


def wait_for_devices() -> None:
    """Wait for what a call has left to a device to finish; a Session leaves nothing."""
    if tf.executing_eagerly() and _has_other_devices():
        tf.test.experimental.sync_devices()


def _has_other_devices() -> bool:
    """Return whether work is left to devices that it must be awaited from."""
    return any(device.device_type != "CPU" for device in present_devices())


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
