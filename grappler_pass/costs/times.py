"""Seconds of work: measured on a grid of sizes, or from peak rates.

One grid holds one op class in one dtype. Between points log(seconds) is linear in
log(size) along every axis; beyond the last point of an axis seconds grow in proportion.
Below the first they are a fixed part and one in proportion to the size, as the first
two points tell, at two sizes that are added there, and no less than the smallest call
that was measured; below those they stay.

Rates are for what was never measured. On a GPU matrix products take as long as their
tiles fill its multiprocessors: a library cuts the result into tiles and gives each
multiprocessor one at a time, so that small products leave some of them idle (wave
quantization), narrow ones compute what was not asked for (tile quantization), and small
tiles read more than the cache delivers. Where there are fewer tiles than
multiprocessors the sum is cut as well.

References:
    Williams et al., Roofline, Communications of the ACM 52(4), 2009; NVIDIA, Matrix
    Multiplication Background User's Guide (tile sizes, quantization, alignment); Lavin
    and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from grappler_pass.costs.calls import DTYPE_BYTES, Product, Work
from grappler_pass.costs.op_classes import MATRIX_PREFIXES
from grappler_pass.fork_safety import cached_attribute

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
    def _logarithms(self) -> tuple[list[float], list[tuple[list[float], int]]]:
        """Those of the seconds; those of each axis, with its stride."""
        axes: list[tuple[list[float], int]] = []
        stride = 1
        for axis in reversed(self.axes):
            axes.insert(0, (list(map(math.log, axis)), stride))
            stride *= len(axis)
        return list(map(math.log, self.corrected)), axes

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
        log_seconds, log_axes = self._logarithms
        of_axes = zip(self.axes, log_axes, point, strict=True)
        for axis, (logs, stride), size in of_axes:
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
        return scale * math.exp(sum(log_seconds[at] * w for at, w in corners))


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


# What cuBLAS chooses from, as the guide lists it.
TILES = (
    (256, 128),
    (128, 256),
    (128, 128),
    (256, 64),
    (64, 256),
    (128, 64),
    (64, 128),
    (64, 64),
)
# A sum is cut into pieces no shorter than this.
_SHORTEST_SUM = 256
_ACCUMULATOR_BYTES = 4


@dataclass(frozen=True, slots=True)
class Multiprocessors:
    """What decides how near to its peak a GPU multiplies matrices.

    Args:
        count: of them.
        cache_bytes_per_second: what the second-level cache delivers to all of them.
        alignment: dtype -> number of which the length of a row in memory must be a
            multiple to be read at full speed; 1 for a dtype not named.
        unaligned_flops: dtype -> flops per second of a product that is not.
        fast_convolution: dtype -> how much faster than as a product a 3 x 3
            convolution with stride 1 is.
        tile_seconds: what a tile takes besides multiplying: to fetch its first operands
            and to write its result.
        direct_flops: flops per second of convolutions by groups of channels, which
            are too narrow for tiles.
    """

    count: int
    cache_bytes_per_second: float
    alignment: Mapping[str, int]
    unaligned_flops: Mapping[str, float]
    fast_convolution: Mapping[str, float]
    tile_seconds: float
    direct_flops: float

    def unaligned(self, product: Product, dtype: str) -> tuple[int, ...]:
        """Return the lengths of rows that a product in `dtype` stumbles over."""
        step = self.alignment.get(dtype, 1)
        # Convolutions are padded by the library.
        lengths = () if product.is_convolution else product.row_lengths
        return tuple(dict.fromkeys(length for length in lengths if length % step))

    def seconds(self, product: Product, dtype: str, flops: float, copy: float) -> float:
        """Return the time of the multiplications alone.

        Args:
            product: what to multiply.
            dtype: name of the operands' dtype.
            flops: per second, that large products reach in `dtype`.
            copy: bytes per second of the memory.
        """
        if self.unaligned(product, dtype):
            flops = min(flops, self.unaligned_flops.get(dtype, flops))
        tiled = min(self._tiled(product, dtype, tile, flops, copy) for tile in TILES)
        if product.has_short_cut:
            tiled /= self.fast_convolution.get(dtype, 1.0)
        if product.batch == 1 or not product.is_convolution:
            return tiled
        each = 2.0 * product.m * product.n * product.k
        return min(tiled, product.batch * each / self.direct_flops)

    def fill(self, product: Product) -> float:
        """Return the share of the device that the smallest tiles put to use."""
        rows, columns = TILES[-1]
        tiles = _tile_count(product, TILES[-1])
        used = product.batch * product.m * product.n / (tiles * rows * columns)
        pieces = tiles * max(product.k // _SHORTEST_SUM, 1)
        return used * pieces / (-(-pieces // self.count) * self.count)

    def _tiled(
        self,
        product: Product,
        dtype: str,
        tile: tuple[int, int],
        flops: float,
        copy: float,
    ) -> float:
        rows, columns = tile
        tiles = _tile_count(product, tile)
        pace = max(
            2.0 * rows * columns * self.count / flops,
            (rows + columns)
            * DTYPE_BYTES[dtype]
            * self.count
            # What all of them read comes from the same cache.
            / self.cache_bytes_per_second,
        )
        results = product.batch * product.m * product.n

        def seconds(pieces: int) -> float:
            waves = -(-tiles * pieces // self.count)
            latency = waves * self.tile_seconds
            if pieces == 1:
                return latency + waves * product.k * pace
            spilled = 2.0 * pieces * results * _ACCUMULATOR_BYTES
            depth = max(-(-product.k // pieces), _SHORTEST_SUM)
            return latency + waves * depth * pace + spilled / copy

        powers = range(max(self.count // tiles, 1).bit_length())
        return min(seconds(1 << power) for power in powers)


def _tile_count(product: Product, tile: tuple[int, int]) -> int:
    rows, columns = tile
    return max(product.batch * -(-product.m // rows) * -(-product.n // columns), 1)


# Of the rate of float32 products, what a depthwise convolution reaches on a CPU, where
# that of elementwise ops is what memory allows them: the 12 classes that are measured
# on one with avx512_bf16 reach 0.03 to 0.4 of it, 0.25 in the middle.
_DEPTHWISE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limits of one device, per dtype name.

    Args:
        overhead_seconds: what every executed op pays.
        matrix_flops: flops per second of matrix products and convolutions; "tf32" for
            those of float32 where GPUs round it to TensorFloat-32.
        vector_flops: flops per second of everything else.
        bytes_per_second: memory bandwidth that ops reach when holding that dtype.
        slowdown: class prefix -> dtype -> factor, where an op is known to miss the
            roofline by that much; the first that fits, "" fits all.
        dispatch_seconds: what an op takes at least, since its host starts no more.
        multiprocessors: how products spread over a GPU; None: they reach their rate
            at any size.
        tensor_float_32: whether TensorFlow lets products of float32 be so rounded,
            where there is a rate for it; by default it does.
    """

    overhead_seconds: float
    matrix_flops: Mapping[str, float]
    vector_flops: Mapping[str, float]
    bytes_per_second: Mapping[str, float]
    slowdown: Mapping[str, Mapping[str, float]]
    dispatch_seconds: float = 0.0
    multiprocessors: Multiprocessors | None = None
    tensor_float_32: bool = True

    def compiled(self) -> Roofline:
        """Return the limits of what XLA compiles.

        The host starts a program as a whole. Of kernels that miss the roofline XLA uses
        those of products. It pads these in 16 bits to rows that can be read at full
        speed (CublasPadForGemms in xla/service/gpu/nvptx_compiler.cc).
        """
        slowdown = {
            prefix: factors
            for prefix, factors in self.slowdown.items()
            if prefix.startswith(MATRIX_PREFIXES)
        }
        units = self.multiprocessors
        if units is not None:
            padded = {d: n for d, n in units.alignment.items() if d == "tf32"}
            units = replace(units, alignment=padded)
        return replace(
            self, dispatch_seconds=0.0, slowdown=slowdown, multiprocessors=units
        )

    def seconds(self, work: Work, dtype: str) -> float:
        """Return max(flops / peak, bytes / bandwidth) plus the overhead of a call.

        What runs while the host starts the next op takes no longer for it.
        """
        units, bandwidth = self.multiprocessors, _rate(self.bytes_per_second, dtype)
        is_product = work.op_class.startswith(MATRIX_PREFIXES)
        if is_product and dtype == "float32" and self.tensor_float_32:
            dtype = "tf32" if "tf32" in self.matrix_flops else dtype
        rate = _rate(self.matrix_flops if is_product else self.vector_flops, dtype)
        if units is None and work.op_class.startswith("depthwise."):
            rate = max(rate, _DEPTHWISE_SHARE * self.matrix_flops["float32"])
        if is_product and units is not None and work.product is not None:
            compute = units.seconds(work.product, dtype, rate, bandwidth)
        else:
            compute = work.flops / rate
        memory = work.bytes_moved / bandwidth
        slowdown = (f for p, f in self.slowdown.items() if work.op_class.startswith(p))
        busy = next(slowdown, {}).get(dtype, 1.0) * max(compute, memory)
        if work.op_class.startswith("fused."):
            # What a fused op does after its product starts no call of its own.
            return work.times * busy
        # The host starts the op once, however often it calls a kernel.
        return max(self.dispatch_seconds, work.times * (self.overhead_seconds + busy))


def _rate(rates: Mapping[str, float], dtype: str) -> float:
    return rates.get(dtype) or rates["float32"]
