"""Prices from a profile, from samples, and from how far the two differ.

An op whose tensors do not stay in the cache from one node to the next is priced by what
it takes on cold data. Products and convolutions read their operands many times over,
so that what the first reading takes does not count.

At every measured point of an op class, log(measured / what the profile predicts) is
known. In between it is averaged, nearer points counting more, in log space of the
class' axes: the profile keeps the shape of the curve, the measurements set its level.
The error grows with the distance to the nearest point and with the disagreement of the
points around. A fused op counts with the plain one of its class, as if farther away.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from grappler_pass.costs.calls import DTYPE_BYTES, OpCall, Price
from grappler_pass.costs.database.price_list import Measured, Sample
from grappler_pass.costs.device_profile import DeviceProfile
from grappler_pass.costs.errors import (
    KINDRED,
    measured_error,
    profile_error,
    roofline_error,
    with_guesses,
    with_smallness,
)
from grappler_pass.costs.work.op_classes import MATRIX_PREFIXES
from grappler_pass.costs.work.op_work import works_of
from grappler_pass.costs.work.piece import CACHED_BYTES, Work


def price_from_profile(
    profile: DeviceProfile, works: Iterable[Work], dtype: str
) -> Price:
    """Return the sum of the pieces, whose errors count as one.

    The dtype is as the profile names it: "float32>bfloat16" for casts.
    """
    parts = [_price(profile, work, dtype) for work in works]
    measured = all(part.source == "profile" for part in parts)
    seconds = sum(part.seconds for part in parts)
    weighted = sum(part.seconds * part.error for part in parts)
    return Price(
        seconds,
        "profile" if measured else "roofline",
        weighted / seconds if seconds > 0.0 else 0.0,
    )


def cast_works(elements: int, source: str, target: str) -> tuple[Work, ...]:
    """Return the work of casting that many values."""
    moved = elements * sum(DTYPE_BYTES.get(end, 4) for end in (source, target))
    return (Work("Cast", (float(max(elements, 1)),), 0.0, float(moved)),)


def _price(profile: DeviceProfile, work: Work, dtype: str) -> Price:
    grid = profile.grid(work.op_class, dtype)
    if grid is not None:
        error = with_smallness(profile_error(profile), grid.smallness(work.point))
        return Price(_on_grid(profile, work, dtype), "profile", error)
    seconds = profile.roofline.seconds(work, dtype)
    if profile.grid(work.op_class, "float32") is not None:
        # Comparable with the measured float32, if only in proportion.
        here = _on_grid(profile, work, "float32")
        seconds = here * seconds / profile.roofline.seconds(work, "float32")
    return Price(seconds, "roofline", roofline_error(profile))


def _on_grid(profile: DeviceProfile, work: Work, dtype: str) -> float:
    grid = profile.extended_grid(work.op_class, dtype)
    assert grid is not None, "the caller has seen one"
    return work.times * work.scale * grid.seconds(work.point)


# Error that a factor e in size adds: halfway between two measured sizes that lie a
# factor of 10 apart it is as large as that of a profile calibrated on the device.
SLOPE = 0.1
# Distance between a fused op and a plain one, or between differently fused ones.
OTHER_PARTS = 1.0
_NEAREST = 8
# Keeps the weight of a point itself finite.
_SOFTENING = 1e-3


class ClassPoint(NamedTuple):
    """Where a call lies in the class of its first piece of work.

    Attributes:
        point: log of the size along every axis.
        parts: the classes of all its pieces.
    """

    point: tuple[float, ...]
    parts: tuple[str, ...]


class Anchor(NamedTuple):
    """A measured point.

    Attributes:
        place: of the point.
        log_ratio: ln(measured / predicted).
        error: of the measured.
        seconds: between the measured and the predicted.
        source: of the predicted.
    """

    place: ClassPoint
    log_ratio: float
    error: float
    seconds: float = 0.0
    source: str = "profile"


class Correction(NamedTuple):
    """What to add to the logarithm of a predicted price, and how sure that is.

    Attributes:
        log_ratio: to add.
        near_error: that of the nearest point, and what the distance to it adds.
        error: that, and the disagreement of the points around.
    """

    log_ratio: float
    near_error: float
    error: float


def correction_at(place: ClassPoint, anchors: Sequence[Anchor]) -> Correction | None:
    """Return the correction between those of a class and dtype; None without any."""
    if not anchors:
        return None
    apart = [(_distance(place, anchor.place), anchor) for anchor in anchors]
    nearest = heapq.nsmallest(_NEAREST, apart, key=lambda each: each[0])
    weighted = [(1.0 / (d**2 + _SOFTENING), a.log_ratio) for d, a in nearest]
    total = sum(weight for weight, _ in weighted)
    mean = sum(weight * ratio for weight, ratio in weighted) / total
    variance = sum(weight * (ratio - mean) ** 2 for weight, ratio in weighted)
    distance, closest = nearest[0]
    near = math.hypot(closest.error, SLOPE * distance)
    return Correction(mean, near, math.hypot(near, math.sqrt(variance / total)))


def _distance(left: ClassPoint, right: ClassPoint) -> float:
    distance = math.dist(left.point, right.point)
    if left.parts == right.parts:
        return distance
    return math.hypot(distance, OTHER_PARTS)


# Whether ops compute or wait for memory, and the source of their predicted price.
Kind = tuple[bool, str]


class Corrections(NamedTuple):
    """By how much a profile is off.

    Attributes:
        anchors: by class and dtype, where it was found out.
        typical: by kind, what to add to the logarithm of a price whose class was not
            measured, so that it compares with those that were. That a machine is slow
            to compute says nothing about its memory, nor that it misses its rates
            about what was calibrated.
    """

    anchors: Mapping[tuple[str, str], Sequence[Anchor]]
    typical: Mapping[Kind, float]

    def overall(self, op_class: str, source: str) -> float:
        """Return what to add where `op_class` itself was not measured."""
        return self.typical.get((is_computing(op_class), source), 0.0)


def is_computing(op_class: str) -> bool:
    """Return whether a class reads its operands many times over."""
    return op_class.startswith(MATRIX_PREFIXES)


def measured_price(sample: Sample, call: OpCall, dtype: str) -> Price:
    """Return the price of a call that was measured at ``dtype``."""
    works = works_of(call, dtype)
    reuses = bool(works) and is_computing(works[0].op_class)
    specs = (*call.inputs, *call.outputs)
    largest = 0 if reuses else max((s.bytes_as(dtype) for s in specs), default=0)
    price = price_from_sample(sample, largest)
    return Price(price.seconds, price.source, with_guesses(price.error, call))


def price_from_sample(sample: Sample, largest_bytes: int) -> Price:
    """Return the price of an op whose largest tensor has that many bytes."""
    lost = max(1.0 - CACHED_BYTES / max(largest_bytes, 1), 0.0)
    seconds = sample.seconds + lost * (sample.cold_seconds - sample.seconds)
    return Price(seconds, "measured", measured_error(sample.spread))


def place_of(works: tuple[Work, ...]) -> ClassPoint:
    """Return where work lies: by its first piece, sizes below one counting as one."""
    point = tuple(math.log(max(size, 1.0)) for size in works[0].point)
    return ClassPoint(point, tuple(work.op_class for work in works))


def corrections_from_rows(
    rows: Iterable[tuple[Measured, OpCall]], profile: DeviceProfile
) -> Corrections:
    """Return by how much a profile is off at each measured row, and overall."""
    anchors: dict[tuple[str, str], list[Anchor]] = {}
    for row, call in rows:
        if call.op == "Cast":
            source = call.inputs[0].dtype
            works = cast_works(call.inputs[0].elements, source, row.dtype)
            dtype = f"{source}>{row.dtype}"
        else:
            works, dtype = works_of(call, row.dtype), row.dtype
        predicted = price_from_profile(profile, works, dtype)
        measured = measured_price(row.sample, call, row.dtype)
        if predicted.seconds <= 0.0 or measured.seconds <= 0.0:
            continue
        ratio = math.log(measured.seconds / predicted.seconds)
        seconds = math.sqrt(measured.seconds * predicted.seconds)
        anchors.setdefault((works[0].op_class, dtype), []).append(
            Anchor(place_of(works), ratio, measured.error, seconds, predicted.source)
        )
    kinds: dict[Kind, list[list[Anchor]]] = {}
    for (op_class, dtype), found in anchors.items():
        # What one 16-bit kernel is off by, float32 is not, nor another kernel.
        if dtype == "float32":
            kind = is_computing(op_class), found[0].source
            kinds.setdefault(kind, []).append(found)
    overall = {kind: typical(found) for kind, found in kinds.items()}
    return Corrections(anchors, overall)


def typical(classes: Iterable[Sequence[Anchor]]) -> float:
    """Return by how much a class is likely off of which nothing was measured.

    The middle of the others by their seconds, so that many small ops count no more
    than a large one, shrunk to 0 where it may be chance: by its own variance over its
    square (the positive part of a James-Stein estimate).
    """
    sums = [
        (
            _weighted_median(
                [(anchor.log_ratio, anchor.seconds) for anchor in anchors]
            ),
            sum(anchor.seconds for anchor in anchors),
        )
        for anchors in classes
    ]
    total = sum(weight for _, weight in sums)
    if not total:
        return 0.0
    middle = _weighted_median(sums)
    scatter = sum(weight * (ratio - middle) ** 2 for ratio, weight in sums)
    others = total**2 / sum(weight**2 for _, weight in sums) - 1.0
    variance = max(scatter / total, KINDRED**2)
    if others * middle**2 <= variance:
        return 0.0
    return middle * (1.0 - variance / (others * middle**2))


def _weighted_median(values: Iterable[tuple[float, float]]) -> float:
    """Return the value at which half of the weight is reached."""
    ordered = sorted(values)
    reached = list(itertools.accumulate(weight for _, weight in ordered))
    return ordered[bisect.bisect_left(reached, reached[-1] / 2.0)][0]
