"""Measure the present device, and keep what was measured as its profile.

Every point of every case (``cases`` says what these are) is timed in rounds, within the
time that there is. An op is run several times in a row, each run waiting for the one
before, on inputs held in variables; the same graph without the op is timed in turn with
it and subtracted. TensorFlow's graph optimizations are off, so that the op stays as
written, while oneDNN's rewriting of kernels happens as in any program. Of several turns
the median counts: what disturbs a program's ops now and then is part of its step. What
the clock cannot tell from nothing in a round is no reading.
"""

from __future__ import annotations

import datetime
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from grappler_pass.costs import DeviceKey, DeviceProfile, nearest_to_cpu
from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.times import monotone, no_slower_than_parts
from tf_amp.calibrate.cases import (
    COARSE,
    Build,
    Case,
    Point,
    Sizes,
    all_cases,
    points_of,
)
from tf_amp.compare.alternation import error_of_median
from tf_amp.errors import NotMeasurableError
from tf_amp.run import progress
from tf_amp.run.graph_run import GraphRun, elapsed, quiet_config

# (op class, dtype or cast, point) -> seconds.
Measurements = dict[tuple[str, str, Point], float]
# The same for each round.
Rounds = dict[tuple[str, str, Point], list[float]]

# The function whose start is timed.
_WIDTH = 32
_LAYERS = 4
_CALLS = 200


class Turns(NamedTuple):
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
# Standard errors that a difference must exceed to be more than noise.
_BEYOND_NOISE = 2.0
CPU = "/CPU:0"


def calibrate(
    seconds: float = 60.0,
    *,
    key: DeviceKey,
    sizes: Sizes = COARSE,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
) -> DeviceProfile:
    """Measure this CPU and return its profile.

    Args:
        seconds: time for all of it; classes that do not fit are taken from the shipped
            profile of the nearest device. Products and additions are measured once,
            whatever that takes: the roofline is made of them.
        key: of this device, by which the profile is found again.
        sizes: how densely each class is measured.
        dtypes: to measure; float32 must be among them.
    """
    end = time.perf_counter() + seconds
    cases = all_cases(sizes)
    starting = call_seconds()
    measured = measure_cases(cases, dtypes, end - time.perf_counter())
    classes = classes_from(cases, measured)
    nearest = nearest_to_cpu(key)
    # How many times as long this device takes as the nearest.
    other = DeviceProfile.load(nearest)
    ratios = [
        taken / grid.seconds(point)
        for (op_class, dtype, point), taken in measured.items()
        if (grid := other.grid(op_class, dtype)) is not None
    ]
    device = (
        f"{key.model}, {key.threads} threads, oneDNN {'on' if key.onednn else 'off'}"
    )
    return DeviceProfile.from_json(
        {
            "format": 1,
            "name": "calibrated",
            "kind": "cpu",
            "description": f"{device}, measured",
            "provenance": {
                "date": datetime.date.today().isoformat(),
                "device": device,
                "how": f"tf-amp calibrate, {seconds:.0f} seconds",
                "tensorflow": tf.__version__,
            },
            "device": str(key),
            "extends": nearest,
            "scale": statistics.median(ratios) if ratios else 1.0,
            "roofline": roofline_from(classes),
            "classes": classes,
            "call_seconds": starting,
        }
    )


def call_seconds() -> float:
    """Return the seconds from the call of a small function until its result is there.

    It is a network of a few layers: handles of weights are passed to a call, and the
    first op that uses threads wakes them up. The median counts: threads wake up late in
    an undisturbed call, too.
    """
    with tf.device("/CPU:0"):
        layers = [
            (tf.Variable(tf.ones((_WIDTH, _WIDTH))), tf.Variable(tf.ones((_WIDTH,))))
            for _ in range(_LAYERS)
        ]
        inputs = tf.ones((_WIDTH, _WIDTH))

    def apply(values: tf.Tensor) -> tf.Tensor:
        for weight, bias in layers:
            values = tf.nn.relu(values @ weight + bias)
        return values

    function = tf.function(apply, autograph=False)

    def call() -> None:
        function(inputs).numpy()

    for _ in range(_CALLS // 10):
        call()
    return statistics.median(elapsed(call) for _ in range(_CALLS))


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


def medians_of(rounds: Rounds) -> Measurements:
    """Return the median of all rounds for each point."""
    return {place: statistics.median(seconds) for place, seconds in rounds.items()}


def _reading(
    build: Build, case: Case, point: Point, dtype: str, turns: Turns
) -> Reading | None:
    """Return the seconds of one execution; None where that is noise."""
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
    chain, start = chained(
        graph_run, lambda inputs: build(*inputs, point=point).op, sets, length
    )
    with graph_run:
        run, base = graph_run.callable(chain), graph_run.callable(start)
        run()
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
) -> tuple[Any, Any]:
    """Return operations: so many runs of an op in a row, and their start without them.

    Args:
      graph_run: that they are added to.
      call: makes the op from one set of tensors.
      sets: of inputs, which the runs take in turn.
      length: how many runs.
    """
    used, graph = sets[:length], graph_run.graph
    with graph.as_default(), graph.device(CPU):
        read = [tensor.op for tensors in used for tensor in tensors]
        with graph.control_dependencies(read):
            start = last = tf.no_op()
        for index in range(length):
            with graph.control_dependencies([last]):
                last = call(used[index % len(used)])
    return last, start


def timing_run() -> GraphRun:
    """Return an empty run for chains; what they read is held before it is entered.

    With its first run that takes about 2 ms, as it does to add an op to one that is
    open and run that (median of 20, two CPU cores).
    """
    return GraphRun({}, config=quiet_config(one_op_at_a_time=True))


def classes_from(
    cases: Sequence[Case], measured: Mapping[tuple[str, str, Point], float]
) -> dict[str, Any]:
    """Return the "classes" entry of a profile.

    A point that was too large to measure is extended from its measured neighbors in
    proportion to its size; one that the clock could not tell from nothing takes no
    longer than the next larger one. A class that lacks any other point is left out.
    """
    classes: dict[str, Any] = {}
    for case in cases:
        for dtype in sorted({key[1] for key in measured if key[0] == case.op_class}):
            if case.label not in (None, dtype):
                continue
            seconds = _filled(case, dtype, measured)
            if seconds is None:
                continue
            axes = {axis: list(sizes) for axis, sizes in case.axes.items()}
            entry = classes.setdefault(case.op_class, {"axes": axes, "seconds": {}})
            entry["seconds"][dtype] = [_rounded(value) for value in seconds]
    return classes


def _filled(
    case: Case, dtype: str, measured: Mapping[tuple[str, str, Point], float]
) -> list[float] | None:
    axes = [list(sizes) for sizes in case.axes.values()]
    here: dict[Point, float] = {}
    for point in itertools.product(*axes):
        seconds = measured.get((case.op_class, dtype, point))
        if seconds is None and case.fits(point):
            larger = [
                taken
                for (op_class, name, other), taken in measured.items()
                if (op_class, name) == (case.op_class, dtype)
                and all(a >= b for a, b in zip(other, point, strict=True))
            ]
            if not larger:
                return None
            seconds = min(larger)
        here[point] = _extended(point, axes, here) if seconds is None else seconds
    lengths, found = [len(axis) for axis in axes], list(here.values())
    if {"m", "n"} <= case.axes.keys():
        found = no_slower_than_parts(case.axes, found)
    return monotone(lengths, found)


def _extended(
    point: Point, axes: Sequence[Sequence[int]], known: Mapping[Point, float]
) -> float:
    """Return the geometric mean of what the next smaller neighbors suggest."""
    logs = []
    for axis, size in enumerate(point):
        position = axes[axis].index(size)
        if position:
            smaller = axes[axis][position - 1]
            neighbor = (*point[:axis], smaller, *point[axis + 1 :])
            logs.append(math.log(known[neighbor] * size / smaller))
    return math.exp(sum(logs) / len(logs))


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def roofline_from(classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the "roofline" entry: the rates that the measured classes reached.

    Raises:
      NotMeasurableError: what it is made of takes no more than noise.
    """
    if missing := sorted({"matmul", "AddV2"} - classes.keys()):
        raise NotMeasurableError(
            f"Nothing is kept: {' and '.join(missing)} could not be told from noise. "
            "Let the machine do nothing else, or give more --seconds."
        )
    matmul, addition = classes["matmul"], classes["AddV2"]
    # Bandwidth as ops of a usual size see it.
    sizes = addition["axes"]["elements"]
    usual = min(range(len(sizes)), key=lambda index: abs(sizes[index] - (1 << 20)))
    return {
        "overhead_seconds": min(addition["seconds"]["float32"]),
        "matrix_flops": {
            dtype: max(_rates(matmul, seconds, flops=2.0))
            for dtype, seconds in matmul["seconds"].items()
        },
        "vector_flops": {
            dtype: max(_rates(addition, seconds))
            for dtype, seconds in addition["seconds"].items()
        },
        "bytes_per_second": {
            dtype: _rates(addition, seconds)[usual] * 3 * DTYPE_BYTES[dtype]
            for dtype, seconds in addition["seconds"].items()
        },
        "slowdown": {},
    }


def _rates(
    entry: Mapping[str, Any], seconds: Sequence[float], flops: float = 1.0
) -> list[float]:
    """Return the rate of each point of a class, per second."""
    points = itertools.product(*entry["axes"].values())
    return [
        _rounded(flops * math.prod(point) / here)
        for point, here in zip(points, seconds, strict=True)
    ]
