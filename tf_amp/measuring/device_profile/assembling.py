"""From measured points to the JSON form of a device profile."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from grappler_pass.costs.calls import DTYPE_BYTES
from grappler_pass.costs.grid import monotone, no_slower_than_parts
from tf_amp.errors import NotMeasurableError
from tf_amp.measuring.device_profile.cases import Case, Point

# (op class, dtype or cast, point) -> seconds.
Measurements = dict[tuple[str, str, Point], float]
# The same for each round.
Rounds = dict[tuple[str, str, Point], list[float]]


def medians_of(rounds: Rounds) -> Measurements:
    """Return the median of all rounds for each point."""
    return {place: statistics.median(seconds) for place, seconds in rounds.items()}


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
    for point in product(*axes):
        seconds = measured.get((case.op_class, dtype, point))
        if seconds is None and case.fits(point):
            seconds = _least_larger(case, dtype, point, measured)
            if seconds is None:
                return None
        here[point] = _extended(point, axes, here) if seconds is None else seconds
    lengths, found = [len(axis) for axis in axes], list(here.values())
    if {"m", "n"} <= case.axes.keys():
        found = no_slower_than_parts(case.axes, found)
    return monotone(lengths, found)


def _least_larger(
    case: Case,
    dtype: str,
    point: Point,
    measured: Mapping[tuple[str, str, Point], float],
) -> float | None:
    """Return what the fastest measured point takes that is larger; None of none."""
    return min(
        (
            seconds
            for (op_class, name, other), seconds in measured.items()
            if (op_class, name) == (case.op_class, dtype)
            and all(large >= small for large, small in zip(other, point, strict=True))
        ),
        default=None,
    )


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
    usual = _nearest(addition["axes"]["elements"], 1 << 20)
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


def _nearest(sizes: Sequence[int], size: int) -> int:
    return min(range(len(sizes)), key=lambda index: abs(sizes[index] - size))


def _rates(
    entry: Mapping[str, Any], seconds: Sequence[float], flops: float = 1.0
) -> list[float]:
    """Return what each point of a class does per second."""
    points = product(*entry["axes"].values())
    return [
        _rounded(flops * math.prod(point) / here)
        for point, here in zip(points, seconds, strict=True)
    ]
