"""Compare tensors with what they are in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp.run.graph_copy import Array
from tf_amp.tools.verify.verification import (
    Difference,
    TensorCheck,
)


def checks_of(
    expected: Mapping[str, Array],
    runs: Mapping[str, Mapping[str, Array]],
    kinds: Mapping[str, str],
) -> tuple[TensorCheck, ...]:
    """Return a row for every tensor of float32's run, by name.

    Beside it stand the runs "mixed", "noise" and "rounded"; kinds are "output" and
    "gradient".
    """
    return tuple(
        TensorCheck(
            name=name,
            kind=kinds[name],
            dtype=str(value.dtype),
            shape=tuple(map(int, value.shape)),
            **{run: difference_of(value, found[name]) for run, found in runs.items()},
            non_finite=0
            if value.dtype.kind in "OSUb"
            else int(np.count_nonzero(~np.isfinite(value.astype(np.float64)))),
            scale=_scale(value),
        )
        for name, value in expected.items()
        if all(name in found for found in runs.values())
    )


def named_leaves(result: Any) -> Iterator[tuple[str, Any]]:
    """Yield every tensor of a structure with its path as a name."""
    paths = tf.nest.flatten(_paths(result, ""))
    flat = tf.nest.flatten(result, expand_composites=True)
    if len(paths) != len(flat):
        paths = [f"output_{number}" for number in range(len(flat))]
    for path, value in zip(paths, flat, strict=True):
        if hasattr(value, "dtype"):
            yield path, value


def _paths(result: Any, path: str) -> Any:
    """Return a structure like `result` with names in the place of tensors."""
    inner = f"{path}/" if path else ""
    if isinstance(result, Mapping):
        return {key: _paths(value, f"{inner}{key}") for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [_paths(value, f"{inner}{i}") for i, value in enumerate(result)]
    return path or "output"


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


def _numbers(float32: Array, other: Array) -> tuple[Array, Array]:
    """Return both as float64; of text, zeros and where it differs ones."""
    if float32.dtype.kind not in "OSU":
        return float32.astype(np.float64), other.astype(np.float64)
    differs: Array = np.asarray(float32 != other)
    return np.zeros(float32.shape), np.broadcast_to(differs, float32.shape) * 1.0


def _scale(value: Array) -> float:
    """Return the root of the mean square of what is finite; 0 of text."""
    if value.dtype.kind in "OSUb":
        return 0.0
    numbers = value.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return _norm(finite) / math.sqrt(finite.size) if finite.size else 0.0


def _norm(value: Array) -> float:
    return float(np.linalg.norm(value))
