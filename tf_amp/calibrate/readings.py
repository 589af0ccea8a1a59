"""Seconds of one op on a device, as far as the clock can tell them.

An op is run several times in a row, each run waiting for the one before, on inputs held
in variables; the same graph without the op is timed in turn with it and subtracted.
TensorFlow's graph optimizations are off, so that the op stays as written, while
oneDNN's rewriting of kernels happens as in any program. Of several turns the median
counts: what disturbs a program's ops now and then is part of its step. What the clock
cannot tell from nothing is no reading.

A GPU computes behind its host, which takes longer to start a small op than the GPU to
run it. So in front of the chain, and of what is subtracted, stand products that keep
the GPU busy until its host has started the whole chain.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_amp.calibrate.cases import Build, Case, Point
from tf_amp.compare.alternation import error_of_median
from tf_amp.errors import NotMeasurableError
from tf_amp.run.graph_run import GraphRun, elapsed, quiet_config

# (op class, dtype or cast, point) -> seconds.
Measurements = dict[tuple[str, str, Point], float]
# The same for each round.
Rounds = dict[tuple[str, str, Point], list[float]]


class Turns(NamedTuple):
    """How often one op is timed: at least ``least`` times, for about ``seconds``."""

    seconds: float
    least: int = 4


FIRST_TURNS = Turns(seconds=0.004, least=3)
LATER_TURNS = Turns(seconds=0.02, least=5)
# What these classes take is needed, however long it takes to measure it.
BASIC_CLASSES = frozenset({"AddV2", "matmul"})
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
# Standard errors that a difference must exceed to be more than noise.
_BEYOND_NOISE = 2.0
# By how much longer the products in front run than the host takes to start a chain of
# the smallest ops: others start several kernels.
_AHEAD = 4.0
# There is no such kernel, on the device or at all.
_NO_KERNEL = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.UnimplementedError,
)
CPU = "/CPU:0"


class Place(NamedTuple):
    """Where ops are timed, and how.

    Attributes:
      device: as TensorFlow names it.
      longest_chain: runs in a row, at most.
      flops: per second, and
      elements: per second, by which it is guessed how long a run takes.
      start_seconds: what the host of a GPU takes to start an op.
      front_side: of the square matrices that are multiplied in front of a chain; 0:
        nothing is in front, since the device is its own host.
      front_seconds: of one such product.
    """

    device: str = CPU
    longest_chain: int = 16
    flops: float = 1e11
    elements: float = 3e9
    start_seconds: float = 0.0
    front_side: int = 0
    front_seconds: float = 1.0


ON_CPU = Place()


def measure_into(
    found: Rounds,
    case: Case,
    point: Point,
    dtypes: Sequence[str],
    turns: Turns,
    place: Place = ON_CPU,
) -> None:
    """Time ``case`` at ``point`` in each dtype, and add what it takes.

    Raises:
      NotMeasurableError: the GPU has no memory left, or no longer answers.
    """
    for name in dtypes if case.label is None else (case.label,):
        source = name.split(">")[0]
        if source not in dtypes or name.split(">")[-1] not in dtypes:
            continue
        entry = (case.op_class, name, point)
        is_needed = case.op_class in BASIC_CLASSES and entry not in found
        again = [LATER_TURNS] * _MOST_TRIES if is_needed else []
        for each in (turns, *again):
            try:
                reading = reading_of(case.build, case, point, source, each, place)
                if reading is not None and case.minus is not None:
                    less = reading_of(case.minus, case, point, source, each, place)
                    reading = less and reading.minus(less)
            except (*_NO_KERNEL, TypeError, ValueError):
                continue
            except tf.errors.OpError as error:
                check_answers(place, error)
                continue
            # It may be no more than noise.
            if reading is not None:
                found.setdefault(entry, []).append(reading.seconds)
                break


def medians_of(rounds: Rounds) -> Measurements:
    """Return the median of all rounds for each point."""
    return {place: statistics.median(seconds) for place, seconds in rounds.items()}


def spread_of(rounds: Rounds) -> float:
    """Return by how much the rounds of a point differ, as a share, in the middle."""
    several = [seconds for seconds in rounds.values() if len(seconds) > 1]
    shares = ((max(s) - min(s)) / statistics.median(s) for s in several)
    return statistics.median(shares) if several else math.nan


def check_answers(place: Place, why: tf.errors.OpError | None = None) -> None:
    """Run an addition on a device, after an error there or before all else.

    Raises:
      NotMeasurableError: a GPU has no memory left, or the device cannot add.
    """
    device, name = place.device, place.device.strip("/")
    is_gpu = place.front_side > 0
    if not (is_gpu and isinstance(why, tf.errors.ResourceExhaustedError)):
        run = timing_run()
        one = run.hold(np.ones((1,), np.float32), device)
        with run.graph.as_default(), run.graph.device(device):
            two = one + one
        try:
            with run:
                run.fetch(two)
        except tf.errors.OpError as error:
            first = (why or error).message.partition("\n")[0]
            raise NotMeasurableError(
                f"Nothing is kept: {name} does not answer ({first}). `nvidia-smi` says "
                "what the driver knows of it."
            ) from error
        return
    raise NotMeasurableError(
        f"Nothing is kept: {name} has no memory left. End other programs that use it."
    ) from why


def reading_of(
    build: Build,
    case: Case,
    point: Point,
    dtype: str,
    turns: Turns,
    place: Place = ON_CPU,
) -> Reading | None:
    """Return the seconds of one execution; None where that is noise."""
    kept = tf.as_dtype(dtype).as_numpy_dtype
    graph_run = timing_run()
    # Ones and a bit: no denormals, and defined under logarithm and root.
    sets = [
        [
            graph_run.hold(np.full(shape, 1.125, kept), place.device)
            for shape in case.shapes(point)
        ]
        for _ in range(_INPUT_SETS)
    ]
    # So many runs at once as what one takes at most allows.
    elements = sum(math.prod(shape) for shape in case.shapes(point))
    guess = 2e-6 + case.flops(point) / place.flops + elements / place.elements
    length = max(1, min(int(_CHAIN_SECONDS / guess), place.longest_chain))
    chain, start = chained(
        graph_run, lambda inputs: build(*inputs, point=point).op, sets, length, place
    )
    with graph_run:
        run, base = graph_run.callable(chain), graph_run.callable(start)
        # The first run chooses and compiles kernels.
        run()
        base()
        runs: list[float] = []
        bases = [elapsed(base) for _ in range(_BASE_RUNS)]
        end = time.perf_counter() + turns.seconds
        while len(runs) < turns.least or time.perf_counter() < end:
            runs.append(elapsed(run))
            bases.append(elapsed(base))
    whole = Reading.of(runs).minus(Reading.of(bases))
    return whole and Reading(whole.seconds / length, whole.error / length)


class Reading(NamedTuple):
    """Seconds of one thing, by several times.

    Attributes:
      seconds: the median of several times.
      error: the standard error of that, in seconds.
    """

    seconds: float
    error: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Reading:
        """Return the reading of several times, three at least."""
        return cls(statistics.median(times), error_of_median(times))

    def minus(self, other: Reading) -> Reading | None:
        """Return the difference; None where it is no more than noise."""
        error = math.hypot(self.error, other.error)
        difference = self.seconds - other.seconds
        return (
            Reading(difference, error) if difference > _BEYOND_NOISE * error else None
        )


def chained(
    graph_run: GraphRun,
    call: Callable[[Sequence[Any]], Any],
    sets: Sequence[Sequence[Any]],
    length: int,
    place: Place = ON_CPU,
) -> tuple[Any, Any]:
    """Return operations: so many runs of an op in a row, and their start without them.

    Args:
      graph_run: that they are added to.
      call: makes the op from one set of tensors.
      sets: of inputs, which the runs take in turn.
      length: how many runs.
      place: where they run.
    """
    used, graph = sets[:length], graph_run.graph
    side, front = place.front_side, []
    if side:
        ones = np.full((side, side), 1.0 / side, np.float32)
        front = [graph_run.hold(ones, place.device)]
    with graph.as_default(), graph.device(place.device):
        read = [tensor.op for tensors in (*used, front) for tensor in tensors]
        with graph.control_dependencies(read):
            start = last = tf.no_op()
        seconds = _AHEAD * length * place.start_seconds
        for _ in range(math.ceil(seconds / place.front_seconds) if side else 0):
            with graph.control_dependencies([start]):
                start = last = tf.raw_ops.MatMul(a=front[0], b=front[0]).op
        for index in range(length):
            with graph.control_dependencies([last]):
                last = call(used[index % len(used)])
    return last, start


def timing_run() -> GraphRun:
    """Return an empty run for chains; what they read is held before it is entered.

    With its first run that takes about 2 ms, as it does to add an op to one that is
    open and run that (median of 20, two CPU cores).
    """
    config = quiet_config(one_op_at_a_time=True)
    # What has no kernel on a GPU is not to be timed on its host.
    config.allow_soft_placement = False
    return GraphRun({}, config=config)
