"""What each node of a call took, as TensorFlow's profiler records it.

It writes XSpaces, whose description is not part of TensorFlow's public interface.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from tf_amp._tensorflow_private import warn_once

_XPLANE = "tensorflow.tsl.profiler.protobuf.xplane_pb2"
_WITHOUT = "cost estimates are not corrected by steps that were slower than predicted"
# Reports kernels, and nothing smaller.
_HOST_LEVEL = 2
_PICOSECONDS = 1e-12

_T = TypeVar("_T")


def profiled(call: Callable[[], _T]) -> tuple[_T, dict[str, float]]:
    """Make a call and return what it took.

    Returns:
      Its result, and the median seconds of one execution by name of node: on CPUs those
      of the kernel; nothing where the program itself uses the profiler.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=_HOST_LEVEL, python_tracer_level=0, device_tracer_level=0
        )
        try:
            tf.profiler.experimental.start(folder, options)
        except (tf.errors.OpError, AttributeError):
            return call(), {}
        try:
            result = call()
        finally:
            with contextlib.suppress(tf.errors.OpError):
                tf.profiler.experimental.stop()
        return result, _seconds_in(pathlib.Path(folder))


def _seconds_in(folder: pathlib.Path) -> dict[str, float]:
    try:
        space_type: Any = importlib.import_module(_XPLANE).XSpace
    except (ImportError, AttributeError):
        warn_once("XSpace", _WITHOUT)
        return {}
    found: dict[str, list[float]] = defaultdict(list)
    for path in folder.rglob("*.xplane.pb"):
        for plane in space_type.FromString(path.read_bytes()).planes:
            names = {key: event.name for key, event in plane.event_metadata.items()}
            for event in (event for line in plane.lines for event in line.events):
                # A kernel is called by its node and its op.
                node, colon, op = names[event.metadata_id].rpartition(":")
                if colon and op.isidentifier():
                    found[node].append(event.duration_ps * _PICOSECONDS)
    return {node: statistics.median(seconds) for node, seconds in found.items()}
