"""Let a program's own steps tell whether XLA compiles a function, or parts of it.

What is compared is the winner of the earlier comparison, or TensorFlow's own instance,
with an instance in which XLA compiles clusters of operations, and with a copy of the
function that XLA compiles as a whole.

  calls     until it pays  1         while XLA compiles     4      2         pairs
  instance  winner         clusters  winner, some clusters  winner clusters  as before

Compiling takes long, so it begins once calls would have saved twice the seconds that it
may take: a job that has run for so long is expected to run for as long again. What
clusters save is not known, so that all seconds of calls count. XLA compiles beside the
program. Now and then a call is made with clusters and profiled; once its profile has
the runs of all clusters, calls are compared in pairs. The threads that compile have a
low priority.

  calls     until it pays    while XLA compiles    4       2      pairs
  instance  winner           winner                winner  whole  as before

A whole function is compiled by a thread that calls it on copies of its variables, with
the arguments of one call, one at a time. Where memory does not hold the copies, a call
of the program waits for XLA; not where the function only calls what XLA compiles: a
call that fails may have taken a batch by then.

What an earlier process has found faster is compiled at once, and called from when it is
ready.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.fork_safety import renewed_lock
from tf_amp._tensorflow_private import eager_context
from tf_amp._tensorflow_private.functions import (
    CLUSTERED,
    WHOLE,
    elsewhere,
    is_of_cluster,
    make_xla_ready,
    on_copies,
)
from tf_amp.compare.background import (
    become_compiler,
    compiling_thread,
    new_compilers_give_way,
    process_ends,
)
from tf_amp.compare.own_steps import (
    OWN_FAULTS,
    StepComparison,
    Steps,
    Turn,
    wait_for_devices,
)
from tf_amp.config.devices import empty_xla_cache, has_memory_for_copies

# What XLA may take to compile an operation: measured were 1 to 4 ms.
_SECONDS_PER_OP = 2.5e-3
# Seconds that calls must have taken, over those that XLA may take.
_REPAID = 2.0
# Seconds between the first two looks at whether it is done, and how much longer each
# wait is than the one before.
_FIRST_WAIT, _LONGER = 0.25, 1.5
# Waits end after so many times the seconds that it may take, or after the least.
_PATIENCE, _LEAST_PATIENCE = 20.0, 30.0
# Where XLA cannot read what it has kept.
_OF_BROKEN_FILES = (tf.errors.OutOfRangeError, tf.errors.DataLossError)
_COMPILE, _RUN = "/xla_compile:_XlaCompile", "/xla_run:_XlaRun"


# Called with a comparison, whether compiling was faster, and what was measured.
Report = Callable[["CompiledSteps", bool, Steps], None]
# Makes a call, given its label; or has something else done with what is called.
Call = Callable[..., Any]
# What that is, given how TensorFlow calls functions.
Way = Callable[[Callable[..., Any]], Callable[..., Any]]


class CompiledSteps(StepComparison):
    """The calls at one site while it is open whether XLA compiles parts of it.

    Attributes:
      label: of the instance that XLA compiles.
      first_seconds: of the first call with clusters, for which the graph is optimized.
      compile_seconds: that the program ran on until XLA was done.
      clusters: how many XLA has compiled.
      was_awaited: whether the program has waited for XLA as long as it may.
    """

    label = CLUSTERED

    def __init__(
        self, name: str, winner: str, ops: int, report: Report, *, is_known: bool
    ) -> None:
        """Begin to compare.

        Args:
          name: of what is called, human-readable.
          winner: the label of the instance that runs so far.
          ops: how many operations it has.
          report: is called with this comparison and its verdict, whenever there is one.
          is_known: whether an earlier process has found it faster compiled.
        """
        self.first_seconds = self.compile_seconds = 0.0
        self.clusters, self.was_awaited = 0, False
        self._least_seconds = _SECONDS_PER_OP * ops
        self._is_known = is_known
        self._report = functools.partial(report, self)
        super().__init__(name, labels=(self.label, winner))
        self.when_decided(self._report)

    def run(self, call: Callable[[str], Any]) -> Any:
        """Make a call; a cluster that fails is left for good, and the call repeated."""
        if not self.is_over or not self.is_faster:
            return super().run(call)
        try:
            return call(self.mixed)
        except tf.errors.OpError as error:
            if not is_of_cluster(error):
                raise
            self.when_decided(self._report)
            return self.without(self.mixed, call)

    def _timed(self, call: Callable[..., Any], turn: Turn) -> Any:
        if turn.label != CLUSTERED or self._counts[CLUSTERED]:
            return super()._timed(call, turn)
        with new_compilers_give_way():
            return super()._timed(call, turn)

    def _is_own_fault(self, label: str, error: tf.errors.OpError) -> bool:
        is_own = isinstance(error, OWN_FAULTS) or is_of_cluster(error)
        return label == self.mixed and is_own

    def _turns(self) -> Generator[Turn, float, None]:
        is_compiled = yield from self._until_compiled()
        if not is_compiled or self._is_known:
            self._decide(is_compiled, Steps())
            return
        yield from super()._turns()

    def _until_compiled(self) -> Generator[Turn, float, bool]:
        """Wait for XLA, and return whether it has compiled anything."""
        if not self._is_known:
            yield from self._meanwhile(_REPAID * self._least_seconds)
        self.first_seconds = yield Turn(CLUSTERED)
        patience = max(_PATIENCE * self._least_seconds, _LEAST_PATIENCE)
        wait = _FIRST_WAIT
        while True:
            # The first calls make XLA compile; the others tell whether it is done.
            yield Turn(CLUSTERED, is_profiled=True)
            nodes = self._profiles[CLUSTERED].pop()
            self.clusters, waiting = clusters_in(nodes)
            if self.clusters and not waiting:
                return True
            self.was_awaited = self.compile_seconds > patience
            if (nodes and not waiting) or self.was_awaited:
                return self.clusters > 0
            self.compile_seconds += yield from self._meanwhile(wait)
            wait *= _LONGER

    def _meanwhile(
        self, seconds: float, *, of_each: float = 0.0
    ) -> Generator[Turn, float, float]:
        """Go on as before until calls have taken so long; return how long they took.

        `of_each`: seconds of each call that do not count.
        """
        taken = 0.0
        while taken < seconds:
            call = yield Turn(self.meanwhile, is_awaited=False)
            taken += max(0.0, call - of_each)
        return taken


class WholeSteps(CompiledSteps):
    """The calls at one site while it is open whether XLA compiles all of it.

    Attributes:
      refusal: why XLA does not compile it, in its words; "" where it does.
      is_refused: whether that is said by XLA, and will be said again.
      waits: whether a call of the program has waited for XLA.
    """

    label = WHOLE

    def __init__(
        self,
        *args: Any,
        examine: Callable[[Sequence[Any]], float],
        make: Callable[[], Way],
        before: StepComparison | None,
        **kwargs: Any,
    ) -> None:
        """Begin to compare.

        Args:
          *args: as of `CompiledSteps`.
          examine: returns, given the arguments of a call, the seconds that it is
            expected to take once it is compiled; raises `ValueError` with the reason
            where it is left alone.
          make: makes the copy that XLA compiles, and returns how it is called so that
            XLA compiles it and no variable of the program changes: `on_copies`, unless
            the copy only calls what XLA compiles.
          before: the comparison, over by now, of what runs so far.
          **kwargs: as of `CompiledSteps`.
        """
        self.refusal, self.waits, self.is_refused = "", False, False
        self._examine, self._make, self.before = examine, make, before
        self._way: Way = on_copies
        self._due: Callable[[Call], None] | None = None
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._expected = 0.0
        super().__init__(*args, **kwargs)

    def run(self, call: Call) -> Any:
        """Make a call; what runs so far is called as its own comparison has it."""
        before = self.before
        if before is None or (self.is_over and self.is_faster):
            return super().run(call)

        def call_either(label: str, *args: Any) -> Any:
            is_whole = label == self.label
            return call(label, *args) if is_whole else before.run(call)

        return super().run(call_either)

    def _timed(self, call: Call, turn: Turn) -> Any:
        if self._due is not None:
            due, self._due = self._due, None
            try:
                self._begin(due, call)
            except Exception as error:
                self._error = error
        return super()._timed(call, turn)

    @property
    def _is_all(self) -> bool:
        """True if XLA compiles all that a call runs: nothing has run where it fails."""
        return self._way is on_copies

    @property
    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _begin(self, work: Callable[[Call], None], call: Call) -> None:
        """Begin something on a thread of its own, which may call as this one would."""

        def run() -> None:
            try:
                become_compiler(lambda: _despite_broken_files(make_xla_ready))
                with _one_at_a_time:
                    if process_ends():
                        raise RuntimeError("the process ends")
                    _despite_broken_files(lambda: there(work))
            except Exception as error:
                self._error = error

        there = elsewhere(eager_context(), call)
        self._thread = compiling_thread(run)

    def _look(self, call: Call) -> None:
        """Find out what compiling is expected to give."""

        def with_inputs(_: object) -> Callable[..., None]:
            def look(context: Any, name: bytes, inputs: Any, *args: Any) -> None:
                self._expected = self._examine(inputs)

            return look

        call(self.label, with_inputs)

    def _compile(self, call: Call) -> None:
        """Have XLA compile."""
        begin = time.perf_counter()
        self._way = self._make()
        if not has_memory_for_copies():
            raise MemoryError("memory does not hold its variables twice")
        call(self.label, self._way)
        wait_for_devices()
        self.compile_seconds = time.perf_counter() - begin

    def _is_own_fault(self, label: str, error: tf.errors.OpError) -> bool:
        if label != self.label:
            # Copies of variables may have taken its memory.
            is_short = isinstance(error, tf.errors.ResourceExhaustedError)
            return is_short and self._is_busy
        # What XLA refuses it refuses before anything of it runs.
        is_new = not self._counts[label] and self._is_all
        refuses = is_new and isinstance(error, tf.errors.InvalidArgumentError)
        if refuses:
            self._note(error)
        return refuses or super()._is_own_fault(label, error)

    def without(self, label: str, call: Callable[[str], Any]) -> Any:
        """Decide against compiling, once copies are gone."""
        if self._thread is not None:
            self._thread.join()
        return super().without(self.label, call)

    def _until_compiled(self) -> Generator[Turn, float, bool]:
        """Wait for XLA, and return whether it has compiled the function."""
        worth = 0.0 if self._is_known else _REPAID * self._least_seconds
        taken = yield from self._meanwhile(worth)
        count = self._counts[self.meanwhile]
        error = yield from self._beside(self._look)
        if error is None:
            saved = taken - count * self._expected
            yield from self._meanwhile(worth and worth - saved, of_each=self._expected)
            error = yield from self._beside(self._compile)
        is_short = isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError))
        if is_short and self._is_all:
            self.waits = True
            self.first_seconds = yield Turn(self.label)
            return True
        if error is not None:
            self._note(error)
        return error is None

    def _beside(
        self, work: Callable[[Call], None]
    ) -> Generator[Turn, float, Exception | None]:
        """Go on as before until a thread has done something; return its error."""
        self._due = work
        while self._due is not None or self._is_busy:
            yield Turn(self.meanwhile, is_awaited=False)
        self._thread, error, self._error = None, self._error, None
        return error

    def _note(self, error: Exception) -> None:
        first_line = str(error).strip().partition("\n")[0]
        self.refusal = first_line or type(error).__name__
        is_of_xla = isinstance(error, tf.errors.OpError)
        self.is_refused = is_of_xla and not isinstance(error, _OF_BROKEN_FILES)


def _despite_broken_files(work: Callable[[], object]) -> None:
    """Do something again without what XLA has kept, where it cannot read that."""
    try:
        work()
    except _OF_BROKEN_FILES:
        if not empty_xla_cache():
            raise
        work()


# XLA compiles for one function after another.
_one_at_a_time = renewed_lock()


def clusters_in(nodes: Collection[str]) -> tuple[int, int]:
    """Return how many clusters have run compiled, and how many others still wait.

    `nodes`: those that a call has executed, as "name:op".
    """
    done = {node.removesuffix(_RUN) for node in nodes if node.endswith(_RUN)}
    begun = {node.removesuffix(_COMPILE) for node in nodes if node.endswith(_COMPILE)}
    return len(done), len(begun - done)
