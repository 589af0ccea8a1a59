"""Seconds from peak rates, for what was never measured.

References: Williams et al., Roofline, Communications of the ACM 52(4), 2009.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grappler_pass.costs.multiprocessors import Multiprocessors
from grappler_pass.costs.work.op_classes import MATRIX_PREFIXES
from grappler_pass.costs.work.piece import Work

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
        factor = self._slowdown(work.op_class, dtype)
        busy = factor * max(compute, memory)
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

    def _slowdown(self, op_class: str, dtype: str) -> float:
        for prefix, factors in self.slowdown.items():
            if op_class.startswith(prefix):
                return factors.get(dtype, 1.0)
        return 1.0


def _rate(rates: Mapping[str, float], dtype: str) -> float:
    return rates.get(dtype) or rates["float32"]
