"""Judge what tf-amp makes of a case's float32 program."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

import tf_amp
from tests import kernel_calls, kernel_check
from tests.kernel_calls import Operands
from tests.kernel_cases import KernelCase
from tests.kernel_check import LOW_DTYPES, Fault, Right

# Of the norm, for results that are not exact.
_LARGEST_ERROR = 0.02
# The smallest normal number of float16; what is less as a whole, such as GELU of a
# number far below zero, has no digits there.
_LEAST_NORM = 2.0**-14


def faults_of(
    case: KernelCase, opt_level: str, low_dtypes: Iterable[str] = LOW_DTYPES
) -> list[Fault] | None:
    """Return what is wrong in the types where it is not so in float32."""
    if case.mode == "eager":
        case = dataclasses.replace(case, mode="fused")
    faults = []
    for draw in kernel_check.draws_of(case):
        operands = kernel_calls.operands_of(case, draw)
        right = _right(case, operands)
        if right is None:
            return None
        for dtype in low_dtypes:
            got = _run(case, operands, right, dtype, opt_level)
            faults += right.faults(dtype, draw, got)[:1] or _far_off(
                right, dtype, draw, got
            )
    return faults


def _right(case: KernelCase, operands: Operands) -> Right | None:
    """Return the results that the float32 program has, with their roundings."""
    right = kernel_check.right_results(case, operands)
    if right is None:
        return None
    typed = kernel_calls.cast(case, operands, "float32")
    try:
        results = kernel_calls.runner(case)(typed)
    except kernel_check.REFUSALS:
        return None
    arrays = [np.asarray(value.numpy(), np.float64) for value in results]
    return dataclasses.replace(right, results=arrays)


def _run(
    case: KernelCase, operands: Operands, right: Right, dtype: str, opt_level: str
) -> list[tf.Tensor]:
    """Run the program rewritten, in dirty memory."""
    typed = kernel_calls.cast(case, operands, "float32")
    tf_amp.enable(dtype, opt_level=opt_level, strict=True)
    try:
        call = kernel_calls.runner(case)
        kernel_check.dirty([*right.results, *typed.values()])
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
