"""What each node of a call took, as TensorFlow's profiler records it.

It writes XSpaces, whose description is not part of TensorFlow's public interface.
"""

from __future__ import annotations

import contextlib
import importlib
import pathlib
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf
from google.protobuf.message import DecodeError

from tf_amp._tensorflow_private import warn_once

_XPLANE = "tensorflow.tsl.profiler.protobuf.xplane_pb2"
_WITHOUT = "prices are not corrected by what steps take"
_PICOSECONDS = 1e-12
_GPU_PLANE = "/device:GPU:"
# Of an event on a GPU: the node and op that have launched it.
_LAUNCHED_BY = "tf_op"
# oneDNN's kernels have ops of their own.
_ONEDNN = re.compile(r":_Mkl(Native)?(Fused)?")

# A call goes on without its profile, whatever that lacks: a folder, a driver, a name.
_FAILURES = (tf.errors.OpError, AttributeError, RuntimeError, OSError)

_T = TypeVar("_T")


def profiled(call: Callable[[], _T]) -> tuple[_T, dict[str, float]]:
    """Make a call and return what it took.

    Returns:
      Its result, and the median seconds of one execution by "name:op" of a node: of its
      kernel on a CPU, of all that it has launched on a GPU; nothing where the program
      itself uses the profiler. The op is that of the graph, whoever's kernel has run.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            )
            # Without options, which some releases warn of.
            tf.profiler.experimental.start(folder)
        except _FAILURES:
            return call(), {}
        try:
            result = call()
        finally:
            with contextlib.suppress(*_FAILURES):
                tf.profiler.experimental.stop()
        return result, _seconds_in(pathlib.Path(folder))


def _seconds_in(folder: pathlib.Path) -> dict[str, float]:
    try:
        space_type: Any = importlib.import_module(_XPLANE).XSpace
    except (ImportError, AttributeError):
        warn_once("XSpace", _WITHOUT)
        return {}
    found: dict[str, float] = {}
    with contextlib.suppress(DecodeError, OSError):
        for path in folder.rglob("*.xplane.pb"):
            found.update(seconds_in_space(space_type.FromString(path.read_bytes())))
    return found


def seconds_in_space(space: Any) -> dict[str, float]:
    """Return the seconds of one execution by "name:op" of a node, as an XSpace has it.

    What a node takes on the host says nothing of one that runs on a GPU, but how often
    it was executed.
    """
    on_host: dict[str, list[float]] = defaultdict(list)
    on_gpu: dict[str, float] = defaultdict(float)
    for plane in space.planes:
        if plane.name.startswith(_GPU_PLANE):
            for node, seconds in _launched(plane):
                on_gpu[node] += seconds
        else:
            for node, seconds in _executed(plane):
                on_host[node].append(seconds)
    medians = {node: statistics.median(each) for node, each in on_host.items()}
    launched = {
        node: s / len(on_host[node]) for node, s in on_gpu.items() if node in medians
    }
    return medians | launched


def _executed(plane: Any) -> Iterator[tuple[str, float]]:
    """Yield the nodes that were executed, with the seconds of each time."""
    names = {key: event.name for key, event in plane.event_metadata.items()}
    for event in (event for line in plane.lines for event in line.events):
        if _is_node(name := names[event.metadata_id]):
            yield _with_own_op(name), event.duration_ps * _PICOSECONDS


def _launched(plane: Any) -> Iterator[tuple[str, float]]:
    """Yield the nodes that have launched what ran on a GPU, with its seconds."""
    names = {key: stat.name for key, stat in plane.stat_metadata.items()}
    for event in (event for line in plane.lines for event in line.events):
        for stat in event.stats:
            node = stat.str_value or names.get(stat.ref_value, "")
            if names.get(stat.metadata_id) == _LAUNCHED_BY and _is_node(node):
                yield node, event.duration_ps * _PICOSECONDS


def _with_own_op(node: str) -> str:
    return _ONEDNN.sub(lambda found: ":_Fused" if found[2] else ":", node)


def _is_node(name: str) -> bool:
    """Return whether an event is called by a node and its op."""
    _, colon, op = name.rpartition(":")
    return bool(colon) and op.isidentifier()
