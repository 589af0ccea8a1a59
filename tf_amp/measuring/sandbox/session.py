"""Run sandboxes in one private Session, in turn and within a time limit.

The Session's own threads run them: those of the program may all be waiting for the
graph that is being optimized. Grappler is off in it, so each graph runs as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_amp.measuring.op_timing import elapsed, quiet_config
from tf_amp.measuring.sandbox.contents import FILL, Content, Values, filling_graph
from tf_amp.measuring.sandbox.graph_copy import STEP, Sandbox

# Runs a step within so many seconds, and returns how long it took. It may be given a
# RunMetadata, which then has the time of every node.
Step = Callable[..., float]


@contextlib.contextmanager
def opened(
    sandboxes: Mapping[str, Sandbox],
    timeout_seconds: float,
    *,
    one_op_at_a_time: bool = False,
) -> Iterator[dict[str, Step]]:
    """Yield the steps of sandboxes side by side, contents shared and made up.

    A step that fails, or takes longer than its time, raises an OpError.

    Args:
      sandboxes: by a name of your choice.
      timeout_seconds: of filling in.
      one_op_at_a_time: run no op beside another; an op may still use all threads.

    Raises:
      ValueError: TensorFlow cannot import a graph.
      tf.errors.OpError: the same; or the contents cannot be made, for lack of memory.
    """
    config = quiet_config()
    if one_op_at_a_time:
        config.inter_op_parallelism_threads = 1
    graph = tf.Graph()
    steps = {
        name: imported(graph, box.graph_def, name, [STEP])[0]
        for name, box in sandboxes.items()
    }
    contents = {c.name: c for box in sandboxes.values() for c in box.contents}
    options = _options(timeout_seconds)
    with filled_session(
        graph, contents.values(), {}, config=config, options=options
    ) as session:
        yield {
            name: _timed(session.make_callable(step, accept_options=True))
            for name, step in steps.items()
        }


def _timed(run: Callable[..., object]) -> Step:
    def step(timeout_seconds: float, metadata: Any = None) -> float:
        options = _options(timeout_seconds)
        if metadata is not None:
            has_gpu = bool(tf.config.get_visible_devices("GPU"))
            full, software = options.FULL_TRACE, options.SOFTWARE_TRACE
            options.trace_level = full if has_gpu else software
        return elapsed(lambda: run(options=options, run_metadata=metadata))

    return step


@contextlib.contextmanager
def filled_session(
    graph: Any,
    contents: Iterable[Content],
    values: Values,
    *,
    config: Any = None,
    options: Any = None,
) -> Iterator[Any]:
    """Yield a Session of a graph whose private variables are filled in.

    Values are by name of the contents, others are made up; the options are for this,
    the config for the Session, by default `quiet_config`.
    """
    filling, feeds = filling_graph(contents, values)
    ends = [FILL, *feeds]
    filled, *places = imported(graph, filling, "contents", ends)
    fed = [place.outputs[0] for place in places]
    with tf.compat.v1.Session(graph=graph, config=config or quiet_config()) as session:
        ready = session.make_callable(filled, fed or None, accept_options=True)
        ready(*feeds.values(), options=options)
        yield session


def imported(
    graph: Any, graph_def: Any, prefix: str, names: Sequence[str]
) -> list[Any]:
    """Import a GraphDef into a graph; return operations of it by their names there.

    Raises:
      ValueError: TensorFlow cannot import it.
      tf.errors.OpError: the same.
    """
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name=prefix)
    return [graph.get_operation_by_name(f"{prefix}/{name}") for name in names]


def _options(timeout_seconds: float) -> Any:
    milliseconds = max(1, int(timeout_seconds * 1000))
    return tf.compat.v1.RunOptions(timeout_in_ms=milliseconds)
