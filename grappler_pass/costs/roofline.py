"""Seconds from peak rates, for what was never measured.

On a GPU matrix products take as long as their tiles fill its multiprocessors: a library
cuts the result into tiles and gives each multiprocessor one at a time, so that small
products leave some of them idle (wave quantization), narrow ones compute what was not
asked for (tile quantization), and small tiles read more than the cache delivers. Where
there are fewer tiles than multiprocessors the sum is cut as well.

References:
    Williams et al., Roofline, Communications of the ACM 52(4), 2009; NVIDIA, Matrix
    Multiplication Background User's Guide (tile sizes, quantization, alignment); Lavin
    and Gray, Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grappler_pass.costs.calls import DTYPE_BYTES, Product, Work
from grappler_pass.costs.op_classes import MATRIX_PREFIXES

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
        matrix_flops: flops per second of matrix products and convolutions.
        vector_flops: flops per second of everything else.
        bytes_per_second: memory bandwidth that ops reach when holding that dtype.
        slowdown: class prefix -> dtype -> factor, where an op is known to miss the
            roofline by that much.
        dispatch_seconds: what an op takes at least, since its host starts no more.
        multiprocessors: how products spread over a GPU; None: they reach their rate
            at any size.
    """

    overhead_seconds: float
    matrix_flops: Mapping[str, float]
    vector_flops: Mapping[str, float]
    bytes_per_second: Mapping[str, float]
    slowdown: Mapping[str, Mapping[str, float]]
    dispatch_seconds: float = 0.0
    multiprocessors: Multiprocessors | None = None

    def seconds(self, work: Work, dtype: str) -> float:
        """Return max(flops / peak, bytes / bandwidth) plus the overhead of a call.

        What runs while the host starts the next op takes no longer for it.
        """
        compute = self._compute_seconds(work, dtype)
        memory = work.bytes_moved / _rate(self.bytes_per_second, dtype)
        slowdown = (f for p, f in self.slowdown.items() if work.op_class.startswith(p))
        busy = next(slowdown, {}).get(dtype, 1.0) * max(compute, memory)
        if work.op_class.startswith("fused."):
            # What a fused op does after its product starts no call of its own.
            return work.times * busy
        # The host starts the op once, however often it calls a kernel.
        return max(self.dispatch_seconds, work.times * (self.overhead_seconds + busy))

    def _compute_seconds(self, work: Work, dtype: str) -> float:
        if not work.op_class.startswith(MATRIX_PREFIXES):
            rate = _rate(self.vector_flops, dtype)
            on_cpu = self.multiprocessors is None
            if on_cpu and work.op_class.startswith("depthwise."):
                rate = max(rate, _DEPTHWISE_SHARE * self.matrix_flops["float32"])
            return work.flops / rate
        flops = _rate(self.matrix_flops, dtype)
        if self.multiprocessors is None or work.product is None:
            return work.flops / flops
        copy = _rate(self.bytes_per_second, dtype)
        return self.multiprocessors.seconds(work.product, dtype, flops, copy)


def _rate(rates: Mapping[str, float], dtype: str) -> float:
    return rates.get(dtype) or rates["float32"]
