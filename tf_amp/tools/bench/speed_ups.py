"""Times and values against float32's, round by round.

A speed-up is the time of float32 over the time of the method; its spread is that of the
rounds, each of which compares processes that ran next to each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np


@dataclasses.dataclass(frozen=True)
class SpeedUp:
    """Time of float32 over that of a method; more than 1 is faster.

    Attributes:
      median: ratio of the medians of all rounds.
      lowest: ratio of one round.
      highest: ratio of one round.
    """

    median: float
    lowest: float
    highest: float


def speed_up_of(
    seconds: Mapping[int, float], reference: Mapping[int, float]
) -> SpeedUp | None:
    """Return the speed-up of a method; None where no round has both.

    Args:
      seconds: of a step of the method, by round.
      reference: of a step of float32, by round.
    """
    common = seconds.keys() & reference.keys()
    if not common:
        return None
    ratios = [reference[number] / seconds[number] for number in common]
    overall = median(reference.values()) / median(seconds.values())
    return SpeedUp(overall, min(ratios), max(ratios))


def largest_error(
    values: Mapping[int, Sequence[float]], reference: Mapping[int, Sequence[float]]
) -> float | None:
    """Return the largest distance to float32's values of the same round.

    It is the norm of the difference over float32's norm, without a unit; NaN where a
    value is none. None where no round has both, or they are of different numbers.
    """
    pairs = [
        (np.array(each, float), np.array(reference[number], float))
        for number, each in values.items()
        if len(each) == len(reference.get(number, ())) > 0
    ]
    return float(np.max([_error(a, b) for a, b in pairs])) if pairs else None


def _error(values: np.ndarray, reference: np.ndarray) -> float:
    if np.array_equal(values, reference):
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.linalg.norm(values - reference) / np.linalg.norm(reference))
