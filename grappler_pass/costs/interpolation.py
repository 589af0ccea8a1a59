"""How far a profile is off between the sizes at which it was measured against reality.

At every measured point of an op class, log(measured / what the profile predicts) is
known. In between it is averaged, nearer points counting more, in log space of the
class' axes: the profile keeps the shape of the curve, the measurements set its level.
The error grows with the distance to the nearest point and with the disagreement of the
points around. A fused op counts with the plain one of its class, as if farther away.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

# Error that a factor e in size adds: halfway between two measured sizes that lie a
# factor of 10 apart it is as large as that of a profile calibrated on the device.
SLOPE = 0.1
# Distance between a fused op and a plain one, or between differently fused ones.
OTHER_PARTS = 1.0
_NEAREST = 8
# Keeps the weight of a point itself finite.
_SOFTENING = 1e-3


class Place(NamedTuple):
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

    place: Place
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


def correction_at(place: Place, anchors: Sequence[Anchor]) -> Correction | None:
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


def _distance(left: Place, right: Place) -> float:
    distance = math.dist(left.point, right.point)
    if left.parts == right.parts:
        return distance
    return math.hypot(distance, OTHER_PARTS)
