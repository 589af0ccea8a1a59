"""Examples per second of a step function on each device, in each type."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_amp.configuration.config import checked_dtype
from tf_amp.errors import ConfigError
from tf_amp.placement.named_devices import checked_devices, short_name
from tf_amp.scopes.scope import float32_scope, mixed_precision_scope


def measured_throughputs(
    step: Callable[[Any], Any],
    batch: Any,
    devices: Sequence[str],
    *,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    rounds: int = 5,
) -> dict[str, dict[str, float]]:
    """Measure a step on each device and in each type, one after the other.

    Args:
      step: called with `batch`; it is traced anew for each device and type and returns
        a tensor or nest of them, whose values are waited for. Variables it uses exist
        before, and change if it changes them.
      batch: tensors with the examples along their first axis.
      devices: names such as "GPU:0".
      dtypes: "float32", and 16-bit types.
      rounds: timed calls, after one that is not; the median counts.

    Returns:
      Examples per second by device and type, as `batch_shares` takes them.

    Raises:
      ConfigError: a device is not there, a type is unknown, or the batch is empty.
    """
    names = checked_devices(devices)
    if rounds < 1:
        raise ConfigError(f"rounds: received {rounds!r}; allowed are integers from 1.")
    for dtype in dtypes:
        if dtype != "float32":
            checked_dtype(dtype, "dtypes")
    examples = _examples_of(batch)
    return {
        short_name(name): {
            dtype: examples / _step_seconds(step, batch, name, dtype, rounds)
            for dtype in dtypes
        }
        for name in names
    }


def _examples_of(batch: Any) -> int:
    parts = tf.nest.flatten(batch)
    count = int(tf.shape(parts[0])[0]) if parts else 0
    if count < 1:
        raise ConfigError("batch: received no example.")
    return count


def _step_seconds(
    step: Callable[[Any], Any], batch: Any, device: str, dtype: str, rounds: int
) -> float:
    """Return the median seconds of a step, with its batch on the device already."""
    scope = (
        float32_scope() if dtype == "float32" else mixed_precision_scope(dtype=dtype)
    )

    def on_device(given: Any) -> Any:
        with tf.device(device):
            return step(given)

    with scope:
        with tf.device(device):
            local = tf.nest.map_structure(tf.identity, batch)
        # A function of its own: one traced before keeps its device and its types.
        traced = tf.function(on_device, autograph=False)
        _wait_for(traced(local))
        return statistics.median(_timed(traced, local) for _ in range(rounds))


def _timed(step: Callable[[Any], Any], batch: Any) -> float:
    begin = time.perf_counter()
    _wait_for(step(batch))
    return time.perf_counter() - begin


def _wait_for(results: Any) -> None:
    for tensor in tf.nest.flatten(results):
        if tf.is_tensor(tensor):
            tensor.numpy()
