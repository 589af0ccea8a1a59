"""Judge the kernels that a case runs: in 16 bits, and in float32, against float64.

Operands are integers in -2..2, or ones: 16 bits hold these and their products, and
float32 holds the sums. So each element may be off by one rounding of each step's result
to the type, and no more. What is inexact on any data may have no slice along an axis
with a root mean square error above a tenth of the whole result's root mean square.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import tensorflow as tf

import tf_amp
from tests import kernel_calls, kernel_numpy
from tests.kernel_calls import KernelCase, Operands

LOW_DTYPES = ("bfloat16", "float16")
# Bits of the significand behind the first one, and the smallest spacing.
_SPACING = {
    "bfloat16": (7, 2.0**-133),
    "float16": (10, 2.0**-24),
    "float32": (20, 2.0**-149),  # Sums are exact; the inexact rest has a few roundings.
}
_LARGEST_SLICE_ERROR = 0.1
_INEXACT = {
    *("layer_norm", "swish", "FusedBatchNormV3", "FusedBatchNormGradV3", "LRN"),
    *("Softmax", "LogSoftmax", "Exp", "Tanh", "Sigmoid", "Elu", "Rsqrt", "Sqrt", "Erf"),
    *("Log1p", "Softplus", "Selu", "TanhGrad", "SigmoidGrad", "GeluTanh", "GeluErf"),
    *("EuclideanNorm", "Softsign", "Reciprocal", "Pow"),
}
# Through tf-amp, of the norm, for results that are not exact.
_LARGEST_ERROR = 0.02
# The smallest normal number of float16; what is less as a whole, such as GELU of a
# number far below zero, has no digits there.
_LEAST_NORM = 2.0**-14
# What TensorFlow says of an op that has no such kernel.
REFUSALS = (tf.errors.OpError, TypeError, ValueError)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Results that are wrong.

    Attributes:
      dtype: in which the kernel ran.
      draw: the operands: "integers" or "ones".
      error: norm of the difference over the right result's norm.
      off: how many elements differ by more than they may.
      of: how many there are.
    """

    dtype: str
    draw: str
    error: float
    off: int
    of: int

    def __str__(self) -> str:
        """Say it in a line."""
        off = f"{self.off} of {self.of} elements"
        return f"{self.dtype} {self.error:.2g} off, {off} ({self.draw})"


@dataclasses.dataclass(frozen=True)
class Right:
    """Right results of a case, each with what an element may be off, by type."""

    exact: bool
    results: Sequence[np.ndarray]
    # Of each result: the values behind it, whose roundings add up.
    behind: Sequence[Sequence[np.ndarray]]

    def faults(self, dtype: str, draw: str, got: Iterable[tf.Tensor]) -> list[Fault]:
        """Return what is wrong with results in `dtype`."""
        judged = [self._fault(dtype, draw, value, i) for i, value in enumerate(got)]
        return [fault for fault in judged if fault is not None]

    def _fault(self, dtype: str, draw: str, got: tf.Tensor, i: int) -> Fault | None:
        low = np.asarray(got.numpy()).astype(np.float64)
        right = _as_large_as(self.results[i], dtype)
        # What tf-amp leaves in float32 is not infinite where the type would be.
        is_same = (low == right) | (low == self.results[i])
        with np.errstate(invalid="ignore"):
            difference = np.where(is_same, 0.0, np.abs(low - right))
        difference = np.nan_to_num(difference, nan=1e30, posinf=1e30)
        off = difference > self._allowed(i, dtype)
        if not self.exact:
            off &= _wrong_slices(difference, right)
        if not off.any():
            return None
        norm = np.linalg.norm(right[np.isfinite(right)]) or 1.0
        error = float(np.linalg.norm(difference) / norm)
        return Fault(dtype, draw, error, int(off.sum()), off.size)

    def _allowed(self, i: int, dtype: str) -> np.ndarray:
        return np.sum([_spacing(value, dtype) for value in self.behind[i]], axis=0)


def is_exact(case: KernelCase) -> bool:
    """Return whether only roundings of sums and products are expected."""
    return not {case.op, *case.then} & _INEXACT


def draws_of(case: KernelCase) -> tuple[str, ...]:
    """Return which operands say something: ones do not of what is inexact."""
    return ("integers", "ones") if is_exact(case) else ("integers",)


def right_results(case: KernelCase, operands: Operands) -> Right | None:
    """Return results by NumPy or in float64, in float32 where neither is; or None."""
    for dtype in ("float64", "float32"):
        try:
            typed = kernel_calls.cast(case, operands, dtype)
            after = kernel_calls.values(case, typed, _right_op)
        except REFUSALS:
            continue
        arrays = [[np.asarray(v.numpy(), np.float64) for v in step] for step in after]
        behind = [_shaped_like(v, arrays) for v in arrays[-1]]
        return Right(is_exact(case), arrays[-1], behind)
    return None


def _right_op(case: KernelCase, inputs: Operands) -> list[tf.Tensor]:
    convolution = kernel_numpy.convolved(case, inputs)
    if convolution is None:
        return kernel_calls.results_of_op(case, inputs)
    return [tf.constant(convolution)]


def faults_of(
    case: KernelCase, dtypes: Iterable[str] = ("float32", *LOW_DTYPES), seed: int = 0
) -> list[Fault] | None:
    """Return at most one fault a type and draw; None where TensorFlow refuses."""
    faults, ran = [], False
    for draw in draws_of(case):
        operands = kernel_calls.operands_of(case, draw, seed)
        right = right_results(case, operands)
        if right is None:
            return None
        for dtype in dtypes:
            got = run(case, kernel_calls.cast(case, operands, dtype), right)
            ran = ran or (got is not None and dtype in LOW_DTYPES)
            faults += right.faults(dtype, draw, got or ())[:1]
    return faults if ran else None


def faults_through(
    case: KernelCase, opt_level: str, low_dtypes: Iterable[str] = LOW_DTYPES
) -> list[Fault] | None:
    """Return what is wrong with what tf-amp makes of a case's float32 program."""
    if case.mode == "eager":
        case = dataclasses.replace(case, mode="fused")
    faults = []
    for draw in draws_of(case):
        operands = kernel_calls.operands_of(case, draw)
        right = _right_in_float32(case, operands)
        if right is None:
            return None
        for dtype in low_dtypes:
            got = _run_through(case, operands, right, dtype, opt_level)
            faults += right.faults(dtype, draw, got)[:1] or _far_off(
                right, dtype, draw, got
            )
    return faults


def _right_in_float32(case: KernelCase, operands: Operands) -> Right | None:
    """Return the results that the float32 program has, with their roundings."""
    right = right_results(case, operands)
    if right is None:
        return None
    typed = kernel_calls.cast(case, operands, "float32")
    try:
        results = kernel_calls.runner(case)(typed)
    except REFUSALS:
        return None
    arrays = [np.asarray(value.numpy(), np.float64) for value in results]
    return dataclasses.replace(right, results=arrays)


def _run_through(
    case: KernelCase, operands: Operands, right: Right, dtype: str, opt_level: str
) -> list[tf.Tensor]:
    """Run the program rewritten, in dirty memory."""
    typed = kernel_calls.cast(case, operands, "float32")
    tf_amp.enable(dtype, opt_level=opt_level, strict=True)
    try:
        call = kernel_calls.runner(case)
        dirty([*right.results, *typed.values()])
        return call(typed)
    finally:
        tf_amp.disable()


def _far_off(right: Right, dtype: str, draw: str, got: list[tf.Tensor]) -> list[Fault]:
    """Return faults of results that are off as a whole; exact ones were judged."""
    if right.exact:
        return []
    for value, expected in zip(got, right.results, strict=True):
        norm = max(float(np.linalg.norm(expected)), _LEAST_NORM)
        error = float(np.linalg.norm(value.numpy() - expected) / norm)
        if not error <= _LARGEST_ERROR:
            return [Fault(dtype, draw, error, expected.size, expected.size)]
    return []


def run(case: KernelCase, operands: Operands, right: Right) -> list[tf.Tensor] | None:
    """Run the kernel in dirty memory; None where there is none in this type."""
    call = kernel_calls.runner(case)
    dirty([*right.results, *operands.values()])
    try:
        return call(operands)
    except REFUSALS:
        return None


def dirty(like: Iterable[np.ndarray | tf.Tensor]) -> None:
    """Leave freed memory full of NaN, of these sizes and of powers of two."""
    counts = {int(np.prod(value.shape)) for value in like}
    sizes = [*(count * width for count in counts for width in (2, 4)), *_POWERS]
    filled = [np.full(max(size, 1), 0xFF, np.uint8) for size in sizes * 2]
    filled += [tf.fill([max(size, 1)], np.uint8(0xFF)) for size in sizes]
    del filled


_POWERS = [1 << exponent for exponent in range(6, 18)]


def _shaped_like(
    value: np.ndarray, after: Sequence[Sequence[np.ndarray]]
) -> list[np.ndarray]:
    """Return the values of earlier steps that a result's elements come from, and it."""
    earlier = [step[0] for step in after[:-1] if step[0].shape == value.shape]
    return [*earlier, value]


def _spacing(value: np.ndarray, dtype: str) -> np.ndarray:
    """Return the distance to the next number of the type, zero at zero."""
    bits, smallest = _SPACING[dtype]
    exponent = np.frexp(np.where(np.isfinite(value), value, 0))[1] - 1
    spacing = np.maximum(np.ldexp(1.0, exponent - bits), smallest)
    return np.where(value == 0, 0.0, spacing)


def _as_large_as(value: np.ndarray, dtype: str) -> np.ndarray:
    """Return it infinite where the type is."""
    largest = float(tf.as_dtype(dtype).max)
    return np.where(np.abs(value) > largest, np.copysign(np.inf, value), value)


def _wrong_slices(difference: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return which elements lie in a slice with too large an error."""
    whole = np.sqrt(np.mean(np.square(right)))
    wrong = np.zeros(difference.shape, bool)
    for axis in range(difference.ndim):
        others = tuple(i for i in range(difference.ndim) if i != axis)
        each = np.sqrt(np.mean(np.square(difference), axis=others, keepdims=True))
        wrong |= each > _LARGEST_SLICE_ERROR * whole
    return wrong
