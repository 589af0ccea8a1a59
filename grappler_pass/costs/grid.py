"""Seconds measured on a grid of sizes, read between its points.

One grid holds one op class in one dtype. Between points log(seconds) is linear in
log(size) along every axis; beyond the last point of an axis seconds grow in proportion.
Below the first they are a fixed part and one in proportion to the size, as the first
two points tell, at two sizes that are added there, and no less than the smallest call
that was measured; below those they stay.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from grappler_pass.cached_attributes import cached_attribute

# What a product can be cut along; the least rows, sums and columns, below which there
# are other kernels, and memory bounds them; how much longer it may take than its parts:
# on quiet machines hardly any takes more.
_CUT_AXES, _LEAST_EDGE, _PARTS_SLACK = {"batch", "m", "n"}, 64, 1.5
# Of the first size of an axis, the sizes that are added below it.
_SHARES = (1 / 16, 1 / 4)


@dataclass(frozen=True)
class Grid:
    """Log-log interpolation over ``axes``; of a profile's many a graph asks for few.

    Args:
        axes: increasing sizes along each axis.
        measured: seconds, last axis fastest.
    """

    axes: tuple[tuple[float, ...], ...]
    measured: tuple[float, ...]

    @cached_attribute
    def corrected(self) -> tuple[float, ...]:
        """The seconds, none of which fall along an axis: that is noise."""
        return tuple(monotone([len(axis) for axis in self.axes], self.measured))

    @cached_attribute
    def _log_seconds(self) -> tuple[float, ...]:
        return tuple(map(math.log, self.corrected))

    @cached_attribute
    def _axes(self) -> tuple[tuple[tuple[float, ...], tuple[float, ...], int], ...]:
        """Each axis with the logarithms of its sizes and its stride."""
        lengths = [len(axis) for axis in self.axes]
        return tuple(
            (axis, tuple(map(math.log, axis)), math.prod(lengths[index + 1 :]))
            for index, axis in enumerate(self.axes)
        )

    def scaled(self, factor: float) -> Grid:
        """Return the grid of a device that takes ``factor`` times as long."""
        return Grid(self.axes, tuple(value * factor for value in self.measured))

    def extended(self, float32: Grid | None = None) -> Grid:
        """Return the grid with smaller sizes added to each axis.

        Args:
            float32: of the same class; where given, this is its grid in 16 bits: what
                they lose at a first point they lose below it, what they gain goes with
                the root of the size. In the profile of a CPU with avx512_bf16, its
                smallest points left out, that comes nearest to them.
        """
        axes, own = list(self.axes), list(self.corrected)
        like = own
        if float32 is not None and float32.axes == self.axes:
            like = list(float32.corrected)
        for position, axis in enumerate(self.axes):
            if len(axis) < 2:
                continue
            lengths = [len(each) for each in axes]
            own, like = (
                _longer(values, like, lengths, position, axis) for values in (own, like)
            )
            axes[position] = (*(share * axis[0] for share in _SHARES), *axis)
        return Grid(tuple(axes), tuple(own))

    def smallness(self, point: Sequence[float]) -> float:
        """Return the share that ``point`` is of the smallest one measured, 1 or less.

        Along each axis on which it lies below the first point, multiplied.
        """
        return math.prod(
            max(size, 1.0) / axis[0]
            for axis, size in zip(self.axes, point, strict=True)
            if max(size, 1.0) < axis[0]
        )

    def seconds(self, point: Sequence[float]) -> float:
        """Return seconds at ``point``, one size per axis."""
        corners: tuple[tuple[int, float], ...] = ((0, 1.0),)
        scale = 1.0
        for (axis, logs, stride), size in zip(self._axes, point, strict=True):
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
        logs_here = self._log_seconds
        return scale * math.exp(sum(logs_here[at] * w for at, w in corners))


def _longer(
    values: Sequence[float],
    like: Sequence[float],
    lengths: Sequence[int],
    position: int,
    axis: Sequence[float],
) -> list[float]:
    """Return the values of a grid with `_SHARES` of the first size of an axis added.

    `like` are those in float32, where the values are those of 16 bits.
    """
    inner = math.prod(lengths[position + 1 :])
    block = inner * lengths[position]
    least = min(values)
    longer: list[float] = []
    for start in range(0, len(values), block):
        for share in _SHARES:
            for at in range(start, start + inner):
                first, second = like[at], like[at + inner]
                # At a share of the first size, as the first two points tell.
                saved = (second - first) * (1.0 - share) / (axis[1] / axis[0] - 1.0)
                below = max(first - saved, share * first)
                ratio = values[at] / first
                part = ratio ** math.sqrt(share) if ratio < 1.0 else ratio
                longer.append(max(below * part, least))
        longer += values[start : start + block]
    return longer


def monotone(lengths: Sequence[int], seconds: Sequence[float]) -> list[float]:
    """Return ``seconds`` lowered so that they never fall along an axis.

    What disturbs a measurement adds to it, so that of two values in the wrong order the
    larger is the false one.
    """
    lowered = np.array(seconds, float).reshape(lengths)
    for axis in range(lowered.ndim):
        backwards = np.flip(lowered, axis)
        lowered = np.flip(np.minimum.accumulate(backwards, axis), axis)
    return [float(value) for value in lowered.flat]


def no_slower_than_parts(
    axes: Mapping[str, Sequence[int]], seconds: Sequence[float]
) -> list[float]:
    """Return seconds of products, of those that were disturbed what their parts take.

    A product is the same as several with fewer rows, columns or matrices. Caches, and
    what all of these read, make it a little slower than they are one by one; if it is
    much slower, something else ran while it was measured.
    """
    points = list(itertools.product(*axes.values()))
    known = dict(zip(points, seconds, strict=True))
    edges = [number for number, axis in enumerate(axes) if axis != "batch"]

    def sizes_of_parts(axis: str, sizes: Sequence[int], size: int) -> list[int]:
        least = {"batch": 1}.get(axis, _LEAST_EDGE)
        smaller = (part for part in sizes if least <= part < size)
        return [*(smaller if axis in _CUT_AXES else ()), size]

    def of_parts(point: tuple[int, ...]) -> float:
        sizes = zip(axes, axes.values(), point, strict=True)
        parts = itertools.product(*(sizes_of_parts(*size) for size in sizes))
        return min(known[p] * math.prod(point) / math.prod(p) for p in parts)

    return [
        here
        if min(point[edge] for edge in edges) < _LEAST_EDGE
        or here <= _PARTS_SLACK * of_parts(point)
        else of_parts(point)
        for point, here in known.items()
    ]
