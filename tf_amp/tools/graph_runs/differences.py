"""How far a tensor is from what float32 makes of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from grappler_pass.eligibility.existing_casts import NUMPY_DTYPES
from grappler_pass.graph.type_slots import DTYPE_ENUMS

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Difference:
    """A tensor beside the same one in float32.

    Attributes:
      largest: absolute difference of any two elements.
      relative: norm of the difference over the norm in float32; 0 where they are equal.
      cosine: of the angle between both; 1 where they are equal.
      non_finite: elements that are infinite or NaN while they are not so in float32.
    """

    largest: float = 0.0
    relative: float = 0.0
    cosine: float = 1.0
    non_finite: int = 0


def difference_of(float32: Array, other: Array) -> Difference:
    """Compare a tensor with what it is in float32.

    What is not finite in either is counted, and left out of the rest. Tensors that hold
    no numbers of floating type are compared as numbers; text differs by 0 or 1.
    """
    expected, actual = _numbers(float32, other)
    if expected.shape != actual.shape:
        return Difference(math.inf, math.inf, 0.0, 0)
    sound = np.isfinite(expected) & np.isfinite(actual)
    lost = int(np.count_nonzero(np.isfinite(expected) & ~np.isfinite(actual)))
    expected, actual = expected[sound], actual[sound]
    error = actual - expected
    if not error.any():
        return Difference(non_finite=lost)
    norm, norms = _norm(expected), _norm(expected) * _norm(actual)
    return Difference(
        largest=float(np.abs(error).max()),
        relative=_norm(error) / norm if norm > 0.0 else math.inf,
        cosine=float(np.dot(expected, actual)) / norms if norms else 0.0,
        non_finite=lost,
    )


def rounded(value: Array, low_dtype: str) -> Array:
    """Return float32 values as a 16-bit type holds them; others as they are.

    What does not fit into the type stays as it is, so that nothing becomes infinite.
    """
    if value.dtype != np.float32:
        return value
    with np.errstate(over="ignore", invalid="ignore"):
        low = value.astype(NUMPY_DTYPES[DTYPE_ENUMS[low_dtype]])
        low = low.astype(np.float32)
    fits: Array = np.where(np.isfinite(low), low, value)
    return fits


def _numbers(float32: Array, other: Array) -> tuple[Array, Array]:
    """Return both as float64; of text, zeros and where it differs ones."""
    if float32.dtype.kind not in "OSU":
        return float32.astype(np.float64), other.astype(np.float64)
    differs: Array = np.asarray(float32 != other)
    return np.zeros(float32.shape), np.broadcast_to(differs, float32.shape) * 1.0


def _norm(value: Array) -> float:
    return float(np.linalg.norm(value))
