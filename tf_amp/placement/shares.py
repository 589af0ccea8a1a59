"""Shares of a batch for several heterogeneous replicas, and the types they compute in.

A step of a data-parallel group takes as long as its slowest replica, so shares are in
proportion to throughput: examples per second of a step, on each device in each type.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging

from tf_amp._tensorflow_private.functions import untraced
from tf_amp.config.amp_config import DTYPES, Dtype, checked_dtype
from tf_amp.config.loss_scales.arguments import check_count
from tf_amp.errors import ConfigError
from tf_amp.placement.named_devices import checked_devices, short_name
from tf_amp.run.graph_run import elapsed
from tf_amp.runtime.scope import float32_scope, mixed_precision_scope
from tf_amp.tools import explanation
from tf_amp.tracing.graph_names import name_of

# A 16-bit type must be faster than float32 by that much to be chosen.
_MARGIN = 0.02

Throughputs = Mapping[str, float | Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Share:
    """The work of one device.

    Attributes:
      device: as given.
      dtype: the type it is fastest in.
      examples: of the global batch; 0 only where an idle device is allowed.
      examples_per_second: in that type.
    """

    device: str
    dtype: str
    examples: int
    examples_per_second: float

    @property
    def seconds(self) -> float:
        """Seconds per step, without what replicas exchange."""
        return self.examples / self.examples_per_second

    def __str__(self) -> str:
        """Show device, type, share and seconds."""
        return (
            f"{self.device}: {self.examples} examples in {self.dtype}, "
            f"{self.seconds * 1e3:.3g} ms at {self.examples_per_second:.4g} per second"
        )


@dataclasses.dataclass(frozen=True)
class Shares:
    """One share per device, in the order given; their examples sum to the batch."""

    shares: tuple[Share, ...]

    @property
    def seconds(self) -> float:
        """Seconds per step of the slowest, without what replicas exchange."""
        return max(share.seconds for share in self.shares)

    @property
    def equal_seconds(self) -> float:
        """The same if every device had an equal share, in its own type."""
        batch = sum(share.examples for share in self.shares)
        most = math.ceil(batch / len(self.shares))
        return max(most / share.examples_per_second for share in self.shares)

    def weights(self) -> tuple[float, ...]:
        """Return the weight of each replica's mean gradient in that of the batch."""
        batch = sum(share.examples for share in self.shares)
        return tuple(share.examples / batch for share in self.shares)

    def __str__(self) -> str:
        """Show one line per device, then the step."""
        step = (
            f"step {self.seconds * 1e3:.3g} ms, with equal shares "
            f"{self.equal_seconds * 1e3:.3g} ms (without the exchange)"
        )
        return "\n".join([*map(str, self.shares), step])


def batch_shares(
    global_batch: int, throughputs: Throughputs, *, allow_idle: bool = False
) -> Shares:
    """Divide a batch among heterogeneous devices in proportion to their throughput.

    Args:
      global_batch: examples per step, of all devices.
      throughputs: examples per second by device, as a number for float32, or by type:
        `{"GPU:0": {"float32": 900, "float16": 2500}, "GPU:1": 400}`. What
        `measured_throughputs` returns fits.
      allow_idle: whether a slow device may get no example; if not, each gets one at
        least.

    Returns:
      A share per device; examples sum to `global_batch` exactly.

    Raises:
      ConfigError: there is no device, a type is unknown, a throughput is not positive,
        or there are fewer examples than devices.
    """
    if not throughputs:
        raise ConfigError("throughputs: received none; give one per device.")
    best = {device: _fastest(device, each) for device, each in throughputs.items()}
    least = 0 if allow_idle else 1
    if not isinstance(global_batch, int) or global_batch < max(1, least * len(best)):
        raise ConfigError(
            f"global_batch: received {global_batch!r}; allowed are integers from "
            f"{max(1, least * len(best))}, one example for each of {len(best)} devices."
        )
    rates = [rate for _, rate in best.values()]
    # Proportions are rounded so that the slowest replica takes the shortest time: each
    # further example goes to where it is done first.
    shares = (math.floor(global_batch * rate / sum(rates)) for rate in rates)
    counts = [max(least, share) for share in shares]
    while sum(counts) > global_batch:
        spare = [i for i, count in enumerate(counts) if count > least]
        slowest = max(spare, key=lambda i: counts[i] / rates[i])
        counts[slowest] -= 1
    while sum(counts) < global_batch:
        soonest = min(range(len(rates)), key=lambda i: (counts[i] + 1) / rates[i])
        counts[soonest] += 1
    rows = zip(best.items(), counts, strict=True)
    return Shares(tuple(Share(d, dtype, n, rate) for (d, (dtype, rate)), n in rows))


def _fastest(device: str, given: float | Mapping[str, float]) -> tuple[str, float]:
    """Return the type to compute in and its throughput; a near tie goes to float32."""
    rates = given if isinstance(given, Mapping) else {"float32": given}
    for dtype, rate in rates.items():
        if dtype not in DTYPES:
            raise ConfigError(
                f"throughputs[{device!r}]: received the type {dtype!r}; allowed are "
                f"{', '.join(DTYPES)}."
            )
        if not 0.0 < float(rate) < math.inf:
            raise ConfigError(
                f"throughputs[{device!r}][{dtype!r}]: received {rate!r}; allowed are "
                "positive numbers."
            )
    if not rates:
        raise ConfigError(f"throughputs[{device!r}]: received no type.")
    fastest = max(rates, key=lambda dtype: rates[dtype])
    if rates.get("float32", 0.0) * (1.0 + _MARGIN) >= rates[fastest]:
        fastest = "float32"
    return fastest, float(rates[fastest])


def measured_throughputs(
    step: Callable[[Any], Any],
    batch: Any,
    devices: Sequence[str],
    *,
    dtypes: Sequence[Dtype] = ("float32", "bfloat16"),
    rounds: int = 5,
) -> dict[str, dict[str, float]]:
    """Measure a step on each device and in each type, one after the other.

    Args:
      step: called with `batch`; it is traced again for each device and type, if it is a
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
        step is a ConcreteFunction, which cannot be traced again.
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
    # Functions that are the same in all of several runs.
    functions = [names for row in runs.values() for _, names in row.values()]
    kept = frozenset.intersection(*functions) if len(functions) > 1 else frozenset()
    if kept:
        logging.warning(
            "measured_throughputs: the step calls %s, which was traced once and keeps "
            "its types and device in all that is measured; give the tf.function itself "
            "as the step, or call the Python function that it was made of.",
            ", ".join(sorted(kept)),
        )
    return {
        short_name(name): {dtype: examples / took for dtype, (took, _) in row.items()}
        for name, row in runs.items()
    }


def _run(
    step: Callable[[Any], Any], batch: Any, device: str, dtype: Dtype, rounds: int
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
