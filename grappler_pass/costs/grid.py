"""Seconds measured on a grid of sizes, read between its points.

One grid holds one op class in one dtype. Between points log(seconds) is linear in
log(size) along every axis; beyond the last point of an axis seconds grow in proportion,
below the first they stay: what is smaller still pays the fixed cost of a call.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product


@dataclass(frozen=True, slots=True)
class Grid:
    """Log-log interpolation over ``axes``.

    Args:
        axes: increasing sizes along each axis.
        log_seconds: log of seconds, last axis fastest.
    """

    axes: tuple[tuple[float, ...], ...]
    log_axes: tuple[tuple[float, ...], ...]
    log_seconds: tuple[float, ...]
    strides: tuple[int, ...]

    @classmethod
    def from_seconds(
        cls, axes: Sequence[Sequence[float]], seconds: Sequence[float]
    ) -> Grid:
        """Build a grid; seconds that fall as a size grows are mended (noise)."""
        mended = monotone([len(axis) for axis in axes], seconds)
        sizes = tuple(tuple(float(size) for size in axis) for axis in axes)
        strides = tuple(
            math.prod(len(axis) for axis in axes[index + 1 :])
            for index in range(len(axes))
        )
        return cls(
            axes=sizes,
            log_axes=tuple(tuple(map(math.log, axis)) for axis in sizes),
            log_seconds=tuple(map(math.log, mended)),
            strides=strides,
        )

    def scaled(self, factor: float) -> Grid:
        """Return the grid of a device that takes ``factor`` times as long."""
        shift = math.log(factor)
        return replace(
            self, log_seconds=tuple(value + shift for value in self.log_seconds)
        )

    def seconds(self, point: Sequence[float]) -> float:
        """Return seconds at ``point``, one size per axis."""
        corners: tuple[tuple[int, float], ...] = ((0, 1.0),)
        scale = 1.0
        for axis, logs, stride, size in zip(
            self.axes, self.log_axes, self.strides, point, strict=True
        ):
            last = len(axis) - 1
            if size >= axis[last]:
                scale *= size / axis[last]
                corners = tuple((at + last * stride, w) for at, w in corners)
                continue
            if size <= axis[0]:
                continue
            low = bisect_right(axis, size) - 1
            part = (math.log(size) - logs[low]) / (logs[low + 1] - logs[low])
            at_low = low * stride
            corners = tuple(
                corner
                for at, weight in corners
                for corner in (
                    (at + at_low, weight * (1.0 - part)),
                    (at + at_low + stride, weight * part),
                )
            )
        logs_here = self.log_seconds
        return scale * math.exp(sum(logs_here[at] * w for at, w in corners))


def monotone(lengths: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Return ``seconds`` lowered so that they never fall along an axis.

    What disturbs a measurement adds to it, so that of two values in the wrong order the
    larger is the false one.
    """
    lowered = list(seconds)
    strides = [math.prod(lengths[index + 1 :]) for index in range(len(lengths))]
    places = list(enumerate(product(*map(range, lengths))))
    for at, index in reversed(places):
        for position, length, stride in zip(index, lengths, strides, strict=True):
            if position + 1 < length:
                lowered[at] = min(lowered[at], lowered[at + stride])
    return lowered
