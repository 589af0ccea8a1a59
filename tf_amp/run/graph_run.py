"""Run sandboxes in one private Session, in turn and within a time limit.

The Session's own threads run them: those of the program may all be waiting for the
graph that is being optimized. Grappler is off in it, so each graph runs as it is.

Run work in a thread of its own while a graph waits for its plan.

Within the callback from Grappler the calling thread may have a graph as default, be
inside a trace, or be one of TensorFlow's own. A fresh thread has none of that. It ends
with the work: none is left idle, so none is lost in a fork or awaited at exit.

How much memory a measurement may hold.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from grappler_pass.garbage import collection_allowed
from tf_amp import _tensorflow_private as private
from tf_amp.errors import AmpError
from tf_amp.run.graph_copy import FILL, STEP, Content, Sandbox, Values, filling_graph
from tf_amp.tracing import bypass

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


def elapsed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def quiet_config() -> Any:
    """Return the program's own configuration of devices and threads, Grappler off."""
    config = private.session_config()
    config.graph_options.Clear()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.optimizer_options.global_jit_level = -1
    config.allow_soft_placement = True
    # The threads that all Sessions share may all be waiting for what is run here.
    config.use_per_session_threads = True
    return config


_T = TypeVar("_T")


class StuckError(AmpError, RuntimeError):
    """Work did not end in time, and was given up."""


def _return_memory() -> None:
    """Give back to the system what a thread has freed, which glibc would keep."""
    # Another libc has no such function.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


_leaving = threading.Event()
# Work under way must end before the interpreter does.
atexit.register(_leaving.set)


def run_in_own_thread(work: Callable[[Callable[[], bool]], _T], patience: float) -> _T:
    """Run `work` in a thread of its own, wait, and return or raise its outcome.

    The caller may hold no lock that the work could need. Graphs that the work runs are
    not rewritten. It gets a function that returns whether to stop: the one who waits
    has been interrupted, or the program is about to exit. The patience is far more
    seconds than it is meant to take.

    Raises:
      StuckError: it is still under way; it stops as soon as it asks.
    """
    unwanted = threading.Event()
    results: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            with bypass.leaving_graphs_alone():
                results.append(work(lambda: unwanted.is_set() or _leaving.is_set()))
        except BaseException as error:
            errors.append(error)
        _return_memory()

    thread = threading.Thread(target=body, name="tf-amp measures", daemon=True)
    with collection_allowed():
        thread.start()
        try:
            thread.join(patience)
        finally:
            unwanted.set()
    if errors:
        raise errors[0]
    if not results:
        raise StuckError(f"a measurement has not ended after {patience:.0f} seconds")
    return results[0]


# A measurement may hold this share of what is free at its start.
SHARE = 0.25
# Where the system does not report it: small enough for anything that trains a model.
_UNKNOWN_BYTES = 1 << 30

_MEMORY = pathlib.Path("/proc/meminfo")
_GROUP = pathlib.Path("/sys/fs/cgroup")


def most_bytes(device_type: str = "CPU") -> int:
    """Return how many bytes a measurement may hold now: a quarter of what is free."""
    return int(SHARE * free_bytes(device_type))


def free_bytes(device_type: str = "CPU") -> int:
    """Return what the machine and the process' control group leave, or every GPU."""
    if device_type == "CPU":
        limits = [_machine_free(), _group_free()]
    else:
        limits = [_pool_free(*pool) for pool in _pools(device_type)]
    return min((each for each in limits if each is not None), default=_UNKNOWN_BYTES)


@functools.cache
def _pools(device_type: str) -> tuple[tuple[str, int], ...]:
    """Return TensorFlow's devices of a type, and the most that each may allocate."""
    with tf.compat.v1.Session(graph=tf.Graph(), config=quiet_config()) as session:
        devices = [d for d in session.list_devices() if d.device_type == device_type]
    # Of several processes, each asks for its own device.
    names = (f"/{device.name.rpartition('/')[2]}" for device in devices)
    return tuple(zip(names, (d.memory_limit_bytes for d in devices), strict=True))


def _pool_free(name: str, most: int) -> int | None:
    """Return what is left; None where TensorFlow keeps no account of a device."""
    try:
        used = tf.config.experimental.get_memory_info(name)["current"]
    except ValueError:
        return None
    return max(most - int(used), 0)


def _machine_free() -> int | None:
    for text in _texts([_MEMORY]):
        for line in text.splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _group_free() -> int | None:
    names = ("memory.max", "memory.current", "memory.stat")
    texts = list(_texts(_GROUP / name for name in names))
    if len(texts) < len(names) or not texts[0].strip().isdigit():
        return None
    # Pages of files count as used, but are given up for whoever needs memory.
    fields = (line.split() for line in texts[2].splitlines())
    spare = sum(int(field[1]) for field in fields if field[0] == "inactive_file")
    return max(int(texts[0]) - int(texts[1]) + spare, 0)


def _texts(paths: Iterable[pathlib.Path]) -> Iterable[str]:
    for path in paths:
        try:
            yield path.read_text(errors="replace")
        except OSError:
            continue
