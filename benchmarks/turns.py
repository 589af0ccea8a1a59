"""Calls that take turns in one process: what else the machine does falls on each."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_CALLS = 3


def compared(calls: Sequence[Callable[[], Any]], rounds: int) -> tuple[str, ...]:
    """Return the first one's milliseconds, and the speed-up of each of the others.

    A speed-up is the median over all rounds, with quartiles in brackets.
    """
    seconds = np.array([_round(calls) for _ in range(rounds)])
    ratios = (seconds[:, 0] / seconds[:, i] for i in range(1, len(calls)))
    return f"{1e3 * np.median(seconds[:, 0]):.3g}", *map(_quartiles, ratios)


def _round(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Return the seconds of each call, several times after one another."""
    seconds = []
    for call in calls:
        begin = time.perf_counter()
        for _ in range(_CALLS):
            np.asarray(call())
        seconds.append((time.perf_counter() - begin) / _CALLS)
    return seconds


def _quartiles(ratios: np.ndarray) -> str:
    low, median, high = np.percentile(ratios, (25, 50, 75))
    return f"{median:.2f} ({low:.2f}-{high:.2f})"
