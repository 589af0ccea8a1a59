"""Examples per second of a step function on each device, in each type."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_amp._tensorflow_private.functions import untraced
from tf_amp.config.amp_config import checked_dtype
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.errors import ConfigError
from tf_amp.measuring.op_timing import elapsed
from tf_amp.placement.named_devices import checked_devices, short_name
from tf_amp.runtime.scope import float32_scope, mixed_precision_scope
from tf_amp.tools.explain import explanation
from tf_amp.tracing.graph_names import name_of


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
      step: called with `batch`; it is traced anew for each device and type, if it is a
        tf.function too, and returns a tensor or nest of them, whose values are waited
        for. Variables it uses exist before, and change if it changes them. Other
        functions that it calls keep the types of their first trace, which is warned of.
      batch: tensors with the examples along their first axis.
      devices: names such as "GPU:0".
      dtypes: "float32", and 16-bit types.
      rounds: timed calls, after one that is not; the median counts.

    Returns:
      Examples per second by device and type, as `batch_shares` takes them.

    Raises:
      ConfigError: a device is not there, a type is unknown, the batch is empty, or the
        step is a ConcreteFunction, which cannot be traced anew.
    """
    if explanation.is_concrete(step):
        graph: Any = getattr(step, "graph", None)
        raise ConfigError(
            f"step: received the ConcreteFunction {name_of(graph)}, whose types are "
            "chosen; give the tf.function or the callable that it was traced from."
        )
    names = checked_devices(devices)
    check_count("measured_throughputs", "rounds", rounds)
    for dtype in dtypes:
        if dtype != "float32":
            checked_dtype(dtype, "dtypes")
    parts = tf.nest.flatten(batch)
    examples = int(tf.shape(parts[0])[0]) if parts else 0
    if examples < 1:
        raise ConfigError("batch: received no example.")
    runs = {
        name: {dtype: _run(step, batch, name, dtype, rounds) for dtype in dtypes}
        for name in names
    }
    _warn_of_kept(names for row in runs.values() for _, names in row.values())
    return {
        short_name(name): {dtype: examples / took for dtype, (took, _) in row.items()}
        for name, row in runs.items()
    }


def _warn_of_kept(functions: Iterable[frozenset[str]]) -> None:
    """Warn of functions that are the same in all of several runs."""
    each = tuple(functions)
    kept = frozenset.intersection(*each) if len(each) > 1 else frozenset()
    if kept:
        logging.warning(
            "measured_throughputs: the step calls %s, which was traced once and keeps "
            "its types and device in all that is measured; give the tf.function itself "
            "as the step, or call the Python function that it was made of.",
            ", ".join(sorted(kept)),
        )


def _run(
    step: Callable[[Any], Any], batch: Any, device: str, dtype: str, rounds: int
) -> tuple[float, frozenset[str]]:
    """Return the median seconds of a step whose batch is on the device already.

    And the names of the functions that were traced for it or before.
    """
    scope = (
        float32_scope() if dtype == "float32" else mixed_precision_scope(dtype=dtype)
    )
    own = untraced(step)

    def on_device(given: Any) -> Any:
        with tf.device(device):
            return own(given)

    with scope:
        with tf.device(device):
            local = tf.nest.map_structure(tf.identity, batch)
        # A function of its own: one traced before keeps its device and its types.
        traced = tf.function(on_device, autograph=False)
        _wait_for(traced(local))
        seconds = statistics.median(
            elapsed(lambda: _wait_for(traced(local))) for _ in range(rounds)
        )
        graph = traced.get_concrete_function(local).graph
    library = graph.as_graph_def().library
    return seconds, frozenset(each.signature.name for each in library.function)


def _wait_for(results: Any) -> None:
    for tensor in tf.nest.flatten(results):
        if tf.is_tensor(tensor):
            tensor.numpy()
