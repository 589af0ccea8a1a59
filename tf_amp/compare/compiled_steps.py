"""Let a program's own steps tell whether parts of a function are to be compiled by XLA.

What is compared is the winner of the earlier comparison, or TensorFlow's own instance,
with an instance in which XLA compiles clusters of operations.

  calls     until it pays  1         while XLA compiles     4      2         pairs
  instance  winner         clusters  winner, some clusters  winner clusters  as before

Compiling takes long, so it begins once calls have taken twice the seconds that it may
take: a job that has run for so long is expected to run for as long again. XLA compiles
beside the program. Now and then a call is made with clusters and profiled; once its
profile has the runs of all clusters, calls are compared in pairs.

What an earlier process has found faster is compiled at once, and called from when it is
ready.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Generator
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private.functions import CLUSTERED, is_of_cluster
from tf_amp.compare.own_steps import OWN_FAULTS, StepComparison, Steps, Turn

# What XLA may take to compile an operation: measured were 1 to 4 ms.
_SECONDS_PER_OP = 2.5e-3
# Seconds that calls must have taken, over those that XLA may take.
_REPAID = 2.0
# Seconds between the first two looks at whether it is done, and how much longer each
# wait is than the one before.
_FIRST_WAIT, _LONGER = 0.25, 1.5
# Waits end after so many times the seconds that it may take, or after the least.
_PATIENCE, _LEAST_PATIENCE = 20.0, 30.0
_COMPILE, _RUN = "/xla_compile:_XlaCompile", "/xla_run:_XlaRun"


# Called with a comparison, whether compiling was faster, and what was measured.
Report = Callable[["CompiledSteps", bool, Steps], None]


class CompiledSteps(StepComparison):
    """The calls at one site while it is open whether XLA compiles parts of it.

    Attributes:
      first_seconds: of the first call with clusters, for which the graph is optimized.
      compile_seconds: that the program ran on until XLA was done.
      clusters: how many XLA has compiled.
    """

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
        self.clusters = 0
        self._least_seconds = _SECONDS_PER_OP * ops
        self._is_known = is_known
        self._report = functools.partial(report, self)
        super().__init__(name, labels=(CLUSTERED, winner))
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
            if (nodes and not waiting) or self.compile_seconds > patience:
                return self.clusters > 0
            self.compile_seconds += yield from self._meanwhile(wait)
            wait *= _LONGER

    def _meanwhile(self, seconds: float) -> Generator[Turn, float, float]:
        """Go on as before until calls have taken so long; return how long they took."""
        taken = 0.0
        while taken < seconds:
            taken += yield Turn(self.meanwhile, is_awaited=False)
        return taken


def clusters_in(nodes: Collection[str]) -> tuple[int, int]:
    """Return how many clusters have run compiled, and how many others still wait.

    `nodes`: those that a call has executed, as "name:op".
    """
    done = {node.removesuffix(_RUN) for node in nodes if node.endswith(_RUN)}
    begun = {node.removesuffix(_COMPILE) for node in nodes if node.endswith(_COMPILE)}
    return len(done), len(begun - done)
