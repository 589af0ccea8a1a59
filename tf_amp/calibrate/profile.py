"""Measure the present device, and keep what was measured as its profile.

Every point of every case (``cases`` says what these are) is timed in rounds
(``readings`` says how), within the time that there is.
"""

from __future__ import annotations

import datetime
import itertools
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.costs import DeviceKey, DeviceProfile, nearest_to_cpu
from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.times import monotone, no_slower_than_parts
from tf_amp.calibrate.cases import (
    COARSE,
    Case,
    Point,
    Sizes,
    all_cases,
    points_of,
)
from tf_amp.calibrate.readings import (
    BASIC_CLASSES,
    CPU,
    FIRST_TURNS,
    LATER_TURNS,
    ON_CPU,
    Place,
    Rounds,
    measure_into,
    medians_of,
    spread_of,
)
from tf_amp.errors import NotMeasurableError
from tf_amp.run import progress
from tf_amp.run.graph_run import elapsed

# The function whose start is timed.
_WIDTH = 32
_LAYERS = 4
_CALLS = 200


# By how much a later measurement takes longer than the first, at most.
_MORE_TURNS = LATER_TURNS.seconds / FIRST_TURNS.seconds


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
    rounds = measure_cases(cases, dtypes, end - time.perf_counter())
    measured = medians_of(rounds)
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
            "provenance": provenance(device, seconds, rounds),
            "device": str(key),
            "extends": nearest,
            "scale": statistics.median(ratios) if ratios else 1.0,
            "roofline": roofline_from(classes),
            "classes": classes,
            "call_seconds": starting,
        }
    )


def provenance(device: str, seconds: float, rounds: Rounds) -> dict[str, Any]:
    """Return what a profile says of where it comes from."""
    spread = spread_of(rounds)
    return {
        "date": datetime.date.today().isoformat(),
        "device": device,
        "how": f"tf-amp calibrate, {seconds:.0f} seconds",
        "tensorflow": tf.__version__,
        # Between rounds; with one round it is not known.
        "spread": None if math.isnan(spread) else float(f"{spread:.2g}"),
    }


def call_seconds(device: str = CPU) -> float:
    """Return the seconds from the call of a small function until its result is there.

    It is a network of a few layers: handles of weights are passed to a call, and the
    first op that uses threads wakes them up. The median counts: threads wake up late in
    an undisturbed call, too.
    """
    with tf.device(device):
        layers = [
            (tf.Variable(tf.ones((_WIDTH, _WIDTH))), tf.Variable(tf.ones((_WIDTH,))))
            for _ in range(_LAYERS)
        ]
        inputs = tf.ones((_WIDTH, _WIDTH))

    def apply(values: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
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
    cases: Sequence[Case],
    dtypes: Sequence[str],
    seconds: float,
    place: Place = ON_CPU,
) -> Rounds:
    """Time every point of every case, again and again while time is left.

    Cases come in the order given, so that the first
    are the last to be missing. What may take longer than the time that is left is not
    begun: what was never measured as long as the dearest so far, the rest as long as
    before.
    """
    start = time.perf_counter()
    total = int(seconds) if math.isfinite(seconds) else None
    items = [(case, point) for case in cases for point in points_of(case)]
    dearest, longest = 0.0, [0.0] * len(items)
    found: Rounds = {}
    for turns in itertools.chain([FIRST_TURNS], itertools.repeat(LATER_TURNS)):
        first = turns is FIRST_TURNS
        for number, (case, point) in enumerate(items):
            begin = time.perf_counter() - start
            fits = begin + (dearest if first else longest[number]) < seconds
            if not (fits or first):
                return found
            # The roofline needs the basic classes, whatever they take.
            if not (fits or case.op_class in BASIC_CLASSES):
                continue
            progress.report(f"calibrating {case.op_class}", int(begin), total)
            measure_into(found, case, point, dtypes, turns, place)
            took = time.perf_counter() - start - begin
            dearest = max(dearest, took)
            longest[number] = took * (_MORE_TURNS if first else 1.0)
    return found


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


def roofline_from(
    classes: Mapping[str, Any], usual_elements: int = 1 << 20
) -> dict[str, Any]:
    """Return the "roofline" entry: the rates that the measured classes reached.

    The bandwidth is that of additions of so many elements.

    Raises:
      NotMeasurableError: what it is made of takes no more than noise.
    """
    known = {name for name in classes if "float32" in classes[name]["seconds"]}
    if missing := sorted(BASIC_CLASSES - known):
        raise NotMeasurableError(
            f"Nothing is kept: {' and '.join(missing)} could not be told from noise. "
            "Let the machine do nothing else, or give more --seconds."
        )
    matmul, addition = classes["matmul"], classes["AddV2"]
    sizes = addition["axes"]["elements"]
    usual = min(range(len(sizes)), key=lambda i: abs(sizes[i] - usual_elements))
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
