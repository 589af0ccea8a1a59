"""What each node of a graph takes, as TensorFlow itself records it.

One op at a time is run, so that an op is not charged for what runs beside it; the least
of a few steps counts, node by node, since tracing only ever adds.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tf_amp.measuring.sandbox.graph_copy import Sandbox
from tf_amp.measuring.sandbox.session import opened, run_separately

_FEWEST_STEPS, _MOST_STEPS = 2, 8
# What a GPU's kernels take is kept separate from what the host takes to launch them.
_KERNELS = "/stream:all"

NodeSeconds = Mapping[str, float]


def node_seconds(
    sandboxes: Mapping[str, Sandbox], seconds: float
) -> dict[str, NodeSeconds]:
    """Return seconds per step by name of sandbox and node, loops included.

    Raises:
      NotRunnableError: a graph does not run, or not in the seconds given for all.
    """
    return run_separately(lambda stopped: _traced(sandboxes, seconds), seconds)


def _traced(sandboxes: Mapping[str, Sandbox], seconds: float) -> dict[str, NodeSeconds]:
    end = time.perf_counter() + seconds
    least: dict[str, dict[str, float]] = {name: {} for name in sandboxes}
    with opened(sandboxes, seconds, one_op_at_a_time=True) as session:
        for name in sandboxes:
            session.seconds(name, seconds)
        for step in range(_MOST_STEPS):
            if step >= _FEWEST_STEPS and time.perf_counter() > end:
                break
            for name, found in least.items():
                metadata = session.trace(name, seconds)
                for node, took in _seconds_by_node(metadata, f"{name}/").items():
                    found[node] = min(took, found.get(node, took))
    return dict(least)


def _seconds_by_node(metadata: Any, prefix: str) -> dict[str, float]:
    """Add up what one step recorded of each node."""
    total: dict[str, float] = defaultdict(float)
    for node, took in _records(metadata.step_stats):
        if node.startswith(prefix):
            total[node.removeprefix(prefix)] += took
    return total


def _records(step_stats: Any) -> Iterator[tuple[str, float]]:
    devices = step_stats.dev_stats
    streams = [each for each in devices if each.device.endswith(_KERNELS)]
    on_stream = {_node(stats) for each in streams for stats in each.node_stats}
    for each in devices:
        is_stream = each.device.endswith(_KERNELS)
        if "stream" in each.device and not is_stream:
            continue
        for stats in each.node_stats:
            name = _node(stats)
            if is_stream or name not in on_stream:
                nanoseconds = stats.op_end_rel_nanos - stats.op_start_rel_nanos
                yield name, max(nanoseconds, 0) * 1e-9


def _node(stats: Any) -> str:
    return str(stats.node_name.partition(":")[0])
