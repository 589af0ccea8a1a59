"""Time every point of every case, in rounds, within the time that there is.

An op is run several times in a row, each run waiting for the one before, on inputs held
in variables; the same graph without the op is timed in turn with it and subtracted.
TensorFlow's graph optimizations are off, so that the op stays as written, while
oneDNN's rewriting of kernels happens as in any program. Of several turns the median
counts: what disturbs a program's ops now and then is part of its step. What the clock
cannot tell from nothing in a round is no reading.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from grappler_pass.cached_attributes import cached_attribute
from tf_amp.calibrate.cases import Build, Case, Point, points_of
from tf_amp.compare.alternation import error_of_median
from tf_amp.run import progress
from tf_amp.run.graph_run import GraphRun, elapsed, quiet_config

# (op class, dtype or cast, point) -> seconds.
Measurements = dict[tuple[str, str, Point], float]
# The same for each round.
Rounds = dict[tuple[str, str, Point], list[float]]


def medians_of(rounds: Rounds) -> Measurements:
    """Return the median of all rounds for each point."""
    return {place: statistics.median(seconds) for place, seconds in rounds.items()}


@dataclass(frozen=True)
class Turns:
    """How often one op is timed: at least ``least`` times, for about ``seconds``."""

    seconds: float
    least: int = 4


_FIRST_TURNS = Turns(seconds=0.004, least=3)
_LATER_TURNS = Turns(seconds=0.02, least=5)
# By how much a later measurement takes longer than the first, at most.
_MORE_TURNS = _LATER_TURNS.seconds / _FIRST_TURNS.seconds
_BASIC_CLASSES = frozenset({"AddV2", "matmul"})
# What is needed is measured again so often where a busy machine hides it.
_MOST_TRIES = 8
_INPUT_SETS = 2
# What is subtracted must not be a disturbed one.
_BASE_RUNS = 12
# A run of a chain takes long against the cost of starting it, and so long that the
# threads of one op do not share a core, as they often do at first: products of 0.4 ms,
# run one at a time, took 1 ms in 6 of 10 measurements, and never in chains of 6 ms, nor
# do they in a step (2 cores of a virtual machine).
_CHAIN_SECONDS = 5e-3
_LONGEST_CHAIN = 16
# Fewer times of one thing are no reading of it.
_FEWEST_TIMES = 3
# Standard errors that a difference must exceed to be more than noise.
_BEYOND_NOISE = 2.0
CPU = "/CPU:0"


def measure_cases(
    cases: Sequence[Case], dtypes: Sequence[str], seconds: float
) -> Measurements:
    """Time every point of every case, again and again while time is left.

    The median of all rounds counts. Cases come in the order given, so that the first
    are the last to be missing. What may take longer than the time that is left is not
    begun: what was never measured as long as the dearest so far, the rest as long as
    before.
    """
    start = time.perf_counter()
    total = int(seconds) if math.isfinite(seconds) else None
    items = [(case, point) for case in cases for point in points_of(case)]
    dearest, longest = 0.0, [0.0] * len(items)
    found: Rounds = {}
    for turns in itertools.chain([_FIRST_TURNS], itertools.repeat(_LATER_TURNS)):
        first = turns is _FIRST_TURNS
        for number, (case, point) in enumerate(items):
            begin = time.perf_counter() - start
            fits = begin + (dearest if first else longest[number]) < seconds
            if not (fits or first):
                return medians_of(found)
            # The roofline needs the basic classes, whatever they take.
            if not (fits or case.op_class in _BASIC_CLASSES):
                continue
            progress.report(f"calibrating {case.op_class}", int(begin), total)
            measure_into(found, case, point, dtypes, turns)
            took = time.perf_counter() - start - begin
            dearest = max(dearest, took)
            longest[number] = took * (_MORE_TURNS if first else 1.0)
    return medians_of(found)


def measure_into(
    found: Rounds, case: Case, point: Point, dtypes: Sequence[str], turns: Turns
) -> None:
    """Time ``case`` at ``point`` in each dtype, and add what it takes."""
    for name in dtypes if case.label is None else (case.label,):
        source = name.split(">")[0]
        if source not in dtypes or name.split(">")[-1] not in dtypes:
            continue
        place = (case.op_class, name, point)
        is_needed = case.op_class in _BASIC_CLASSES and place not in found
        again = [_LATER_TURNS] * _MOST_TRIES if is_needed else []
        for each in (turns, *again):
            try:
                reading = _reading(case.build, case, point, source, each)
                if reading is not None and case.minus is not None:
                    less = _reading(case.minus, case, point, source, each)
                    reading = less and reading.minus(less)
            except (tf.errors.OpError, TypeError, ValueError):
                # There is no such kernel.
                continue
            # It may be no more than noise.
            if reading is not None:
                found.setdefault(place, []).append(reading.seconds)
                break


def _reading(
    build: Build, case: Case, point: Point, dtype: str, turns: Turns
) -> Reading | None:
    kept = tf.as_dtype(dtype).as_numpy_dtype
    graph_run = timing_run()
    # Ones and a bit: no denormals, and defined under logarithm and root.
    sets = [
        [graph_run.hold(np.full(s, 1.125, kept), CPU) for s in case.shapes(point)]
        for _ in range(_INPUT_SETS)
    ]
    # So many runs at once as what one takes at most allows.
    elements = sum(math.prod(shape) for shape in case.shapes(point))
    guess = 2e-6 + case.flops(point) / 1e11 + elements / 3e9
    length = max(1, min(int(_CHAIN_SECONDS / guess), _LONGEST_CHAIN))
    chain = Chain(
        graph_run, lambda inputs: build(*inputs, point=point).op, sets, length
    )
    with graph_run:
        chain.run()
        chain.bases += [elapsed(chain.base) for _ in range(_BASE_RUNS)]
        end = time.perf_counter() + turns.seconds
        while len(chain.runs) < turns.least or time.perf_counter() < end:
            chain.turn()
    return chain.reading()


class Reading(NamedTuple):
    """Seconds of one thing, by several times.

    Attributes:
      seconds: the median of several times.
      error: the standard error of that, in seconds.
    """

    seconds: float
    error: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Reading | None:
        """Return the reading of several times; None of too few."""
        if len(times) < _FEWEST_TIMES:
            return None
        return cls(statistics.median(times), error_of_median(times))

    def minus(self, other: Reading) -> Reading | None:
        """Return the difference; None where it is no more than noise."""
        error = math.hypot(self.error, other.error)
        difference = self.seconds - other.seconds
        return (
            Reading(difference, error) if difference > _BEYOND_NOISE * error else None
        )


class Chain:
    """Runs of one op in a row, and the same graph without them.

    Attributes:
      length: how many runs.
      runs: seconds of all of them, by turn.
      bases: seconds without them.
    """

    def __init__(
        self,
        graph_run: GraphRun,
        call: Callable[[Sequence[Any]], Any],
        sets: Sequence[Sequence[Any]],
        length: int,
    ) -> None:
        """Add so many runs of an op, which take the sets of inputs in turn.

        `call` makes the op from one set of tensors.
        """
        self._graph_run, self.length = graph_run, length
        self.runs: list[float] = []
        self.bases: list[float] = []
        used, graph = sets[:length], graph_run.graph
        with graph.as_default(), graph.device(CPU):
            read = [tensor.op for tensors in used for tensor in tensors]
            with graph.control_dependencies(read):
                self._base = self._last = tf.no_op()
            for index in range(length):
                with graph.control_dependencies([self._last]):
                    self._last = call(used[index % len(used)])

    @cached_attribute
    def run(self) -> Callable[[], object]:
        """All runs of the op."""
        return self._graph_run.callable(self._last)

    @cached_attribute
    def base(self) -> Callable[[], object]:
        """Start and end, without the op."""
        return self._graph_run.callable(self._base)

    def turn(self) -> None:
        """Run the op and its base once, and note the seconds."""
        self.runs.append(elapsed(self.run))
        self.bases.append(elapsed(self.base))

    def reading(self) -> Reading | None:
        """Return the seconds of one execution; None where that is noise."""
        runs, bases = Reading.of(self.runs), Reading.of(self.bases)
        whole = runs.minus(bases) if runs and bases else None
        return whole and Reading(whole.seconds / self.length, whole.error / self.length)


def timing_run() -> GraphRun:
    """Return an empty run for chains; what they read is held before it is entered.

    With its first run that takes about 2 ms, as it does to add an op to one that is
    open and run that (median of 20, two CPU cores).
    """
    return GraphRun({}, config=quiet_config(one_op_at_a_time=True))
