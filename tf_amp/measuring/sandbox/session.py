"""Run sandboxes in one private Session, in turn and within a time limit.

To be used in a thread of its own (`apart`) wherever a program may be under way.

The Session's own threads run them: those of the program may all be waiting for the
graph that is being optimized. Grappler is off in it, so each graph runs as it is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import graphs as private_graphs
from tf_amp.measuring.op_timing import quiet_config
from tf_amp.measuring.sandbox.contents import FILL, filling_graph
from tf_amp.measuring.sandbox.graph_copy import STEP, Sandbox


class SandboxSession:
    """Sandboxes ready to run; made by `opened`."""

    def __init__(self, session: Any, names: Mapping[str, Any]) -> None:
        """Keep what runs each sandbox's step, by name."""
        self._steps = {
            name: session.make_callable(step, accept_options=True)
            for name, step in names.items()
        }

    def seconds(self, name: str, timeout_seconds: float) -> float:
        """Run one step and return how long it took.

        Raises:
          tf.errors.OpError: the step fails, or takes longer than the time limit.
        """
        options = _options(timeout_seconds)
        start = time.perf_counter()
        self._steps[name](options=options)
        return time.perf_counter() - start

    def trace(self, name: str, timeout_seconds: float) -> Any:
        """Run one step and return its RunMetadata, with the time of every node.

        Raises:
          tf.errors.OpError: the step fails, or takes longer than the time limit.
        """
        metadata = tf.compat.v1.RunMetadata()
        options = _options(timeout_seconds)
        has_gpu = bool(tf.config.get_visible_devices("GPU"))
        full, software = options.FULL_TRACE, options.SOFTWARE_TRACE
        options.trace_level = full if has_gpu else software
        self._steps[name](options=options, run_metadata=metadata)
        return metadata


@contextlib.contextmanager
def opened(
    sandboxes: Mapping[str, Sandbox],
    timeout_seconds: float,
    *,
    one_op_at_a_time: bool = False,
) -> Iterator[SandboxSession]:
    """Yield the sandboxes side by side, contents shared and filled in.

    Args:
      sandboxes: by a name of your choice.
      timeout_seconds: of filling in.
      one_op_at_a_time: run no op beside another; an op may still use all threads.

    Raises:
      ValueError: TensorFlow cannot import a graph.
      tf.errors.OpError: the same; or the contents cannot be made, for lack of memory.
    """
    contents = {c.name: c for box in sandboxes.values() for c in box.contents}
    graph = tf.Graph()
    imported = private_graphs.import_operations
    steps = {
        name: imported(graph, sandbox.graph_def, name, [STEP])[0]
        for name, sandbox in sandboxes.items()
    }
    filling = filling_graph(contents.values())
    filled = imported(graph, filling, "contents", [FILL])[0]
    config = quiet_config()
    if one_op_at_a_time:
        config.inter_op_parallelism_threads = 1
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        ready = session.make_callable(filled, accept_options=True)
        ready(options=_options(timeout_seconds))
        yield SandboxSession(session, steps)


def _options(timeout_seconds: float) -> Any:
    milliseconds = max(1, int(timeout_seconds * 1000))
    return tf.compat.v1.RunOptions(timeout_in_ms=milliseconds)
