"""Calls that take turns in one process: what else the machine does falls on each."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

_CALLS = 3


class Compared(NamedTuple):
    """What calls took.

    Attributes:
      cells: the first one's milliseconds, and the speed-up of each of the others: the
        median over all rounds, with quartiles in brackets.
      seconds: of each call, round by round.
    """

    cells: tuple[str, ...]
    seconds: list[list[float]]


def compared(calls: Sequence[Callable[[], Any]], rounds: int) -> Compared:
    """Measure calls in turns, the first one being what the others are held against."""
    samples = [_round(calls) for _ in range(rounds)]
    seconds = np.array(samples)
    ratios = (seconds[:, 0] / seconds[:, i] for i in range(1, len(calls)))
    first = f"{1e3 * np.median(seconds[:, 0]):.3g}"
    return Compared((first, *map(quartiles, ratios)), samples)


def _round(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the seconds of each call, several times after one another."""
    seconds = []
    for call in calls:
        begin = time.perf_counter()
        for _ in range(_CALLS):
            np.asarray(call())
        seconds.append((time.perf_counter() - begin) / _CALLS)
    return seconds


def quartiles(ratios: np.ndarray) -> str:
    """Return the median, with quartiles in brackets."""
    low, median, high = np.percentile(ratios, (25, 50, 75))
    return f"{median:.2f} ({low:.2f}-{high:.2f})"
