"""Seconds measured on a grid of sizes, read between its points.

One grid holds one op class in one dtype. Between points log(seconds) is linear in
log(size) along every axis; beyond the last point of an axis seconds grow in proportion.
Below the first they are a fixed part and one in proportion to the size, as the first
two points tell, and no less than the smallest call that was measured.
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
        first = self._from_first(point)
        seconds = first
        for position, (axis, size) in enumerate(zip(self.axes, point, strict=True)):
            if size < axis[0] and len(axis) > 1:
                second = self._from_first(_moved(point, position, axis[1]))
                seconds *= _below(size, axis, second / first)
        if seconds < first:
            return max(seconds, math.exp(min(self.log_seconds)))
        return seconds

    def smallness(self, point: Sequence[float]) -> float:
        """Return the share that ``point`` is of the smallest one measured, 1 or less.

        Along each axis on which it lies below the first point, multiplied.
        """
        return math.prod(
            max(size, 1.0) / axis[0]
            for axis, size in zip(self.axes, point, strict=True)
            if max(size, 1.0) < axis[0]
        )

    def at_least_first(self, point: Sequence[float]) -> tuple[float, ...]:
        """Return ``point`` with sizes below the first of their axis raised to it."""
        return tuple(
            max(size, axis[0]) for axis, size in zip(self.axes, point, strict=True)
        )

    def _from_first(self, point: Sequence[float]) -> float:
        """Return seconds at ``point``, sizes below the first point raised to it."""
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


def _moved(point: Sequence[float], position: int, size: float) -> tuple[float, ...]:
    return (*point[:position], size, *point[position + 1 :])


def _below(size: float, axis: Sequence[float], growth: float) -> float:
    """Return the share of the first point's seconds that a size below it takes.

    Args:
        size: below the first of the axis.
        axis: of two sizes or more.
        growth: seconds at the second point over those at the first.
    """
    first, second = axis[:2]
    saved = (growth - 1.0) * (first - size) / (second - first)
    return max(1.0 - saved, size / first)


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
