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
from dataclasses import dataclass

# Error that a factor e in size adds: halfway between two measured sizes that lie a
# factor of 10 apart it is as large as that of a profile calibrated on the device.
SLOPE = 0.1
# Distance between a fused op and a plain one, or between differently fused ones.
OTHER_PARTS = 1.0
_NEAREST = 8
# Keeps the weight of a point itself finite.
_SOFTENING = 1e-3


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call lies in its class.

    Attributes:
        op_class: of its first piece of work.
        dtype: name.
        point: log of the size along every axis.
        parts: the classes of all its pieces.
    """

    op_class: str
    dtype: str
    point: tuple[float, ...]
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Anchor:
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


@dataclass(frozen=True, slots=True)
class Correction:
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
    """Return the correction between `anchors` of the same class and dtype.

    None where there are none. Its value lies between those of the anchors.
    """
    if not anchors:
        return None
    nearest = heapq.nsmallest(
        _NEAREST, ((_distance(place, a.place), i, a) for i, a in enumerate(anchors))
    )
    weights = [1.0 / (distance**2 + _SOFTENING) for distance, _, _ in nearest]
    total = sum(weights)
    mean = sum(w * a.log_ratio for w, (_, _, a) in zip(weights, nearest, strict=True))
    mean /= total
    variance = sum(
        w * (a.log_ratio - mean) ** 2
        for w, (_, _, a) in zip(weights, nearest, strict=True)
    )
    distance, _, closest = nearest[0]
    near = math.hypot(closest.error, SLOPE * distance)
    return Correction(mean, near, math.hypot(near, math.sqrt(variance / total)))


def _distance(left: Place, right: Place) -> float:
    distance = math.dist(left.point, right.point)
    if left.parts == right.parts:
        return distance
    return math.hypot(distance, OTHER_PARTS)
