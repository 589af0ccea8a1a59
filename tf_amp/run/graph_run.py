"""Run graphs by themselves, in a private Session or in a thread of its own.

The Session's own threads run them: those of the program may all be waiting for the
graph that is being optimized. Grappler is off in it, so each graph runs unchanged.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import pathlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from grappler_pass.garbage import collection_allowed
from tf_amp import _tensorflow_private as private
from tf_amp.errors import AmpError
from tf_amp.run.graph_copy import FILL, Content, Values, filling_graph
from tf_amp.tracing import stack

# A run may hold this share of what is free at its start.
SHARE = 0.25
# Where the system does not report it: small enough for anything that trains a model.
_UNKNOWN_BYTES = 1 << 30
_MEMORY = pathlib.Path("/proc/meminfo")
_GROUP = pathlib.Path("/sys/fs/cgroup")

_T = TypeVar("_T")
_leaving = threading.Event()


class GraphRun:
    """Graphs side by side in one private Session, which share their contents.

        with GraphRun({"before": before, "after": after}, contents, values) as run:
            value = run.fetch(run.tensor("before/logits"))
            seconds = run.seconds("after/tf_amp_step")

    Attributes:
      graph: that holds all of them; more may be added to it.
    """

    def __init__(
        self,
        graphs: Mapping[str, Any],
        contents: Iterable[Content] = (),
        values: Values | None = None,
        *,
        config: Any = None,
        limit_seconds: float | None = None,
    ) -> None:
        """Import graphs, each under a prefix, which may be blank.

        Args:
          graphs: GraphDefs by prefix.
          contents: private variables to fill in.
          values: of contents, by their names; others are synthetic.
          config: of the Session; by default `quiet_config`.
          limit_seconds: of filling in.

        Raises:
          ValueError: TensorFlow cannot import a graph.
          tf.errors.OpError: the same.
        """
        self.graph = tf.Graph()
        for prefix, graph_def in graphs.items():
            self._add(graph_def, prefix)
        self._contents, self._values = list(contents), dict(values or {})
        self._config, self._limit_seconds = config, limit_seconds
        # What knew this object would keep it, and its Session's memory, until garbage
        # is collected.
        self._timed: dict[str, Callable[..., Any]] = {}

    def _add(self, graph_def: Any, prefix: str) -> None:
        with self.graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name=prefix)

    def __enter__(self) -> GraphRun:
        """Open the Session and fill the contents in.

        Raises:
          tf.errors.OpError: contents cannot be made, for lack of memory or time.
        """
        filling, feeds = filling_graph(self._contents, self._values)
        self._add(filling, "contents")
        self.session = tf.compat.v1.Session(
            graph=self.graph, config=self._config or quiet_config()
        )
        try:
            places = [self.tensor(f"contents/{name}") for name in feeds]
            fill = self.callable(self.operation(f"contents/{FILL}"), places)
            fill(*feeds.values(), options=_options(self._limit_seconds))
        except BaseException:
            self.session.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Close the Session, which frees what it holds when this object is gone."""
        self.session.close()

    def hold(self, value: Any, device: str = "") -> Any:
        """Add a private variable that holds an array, and return what reads it.

        To be called before the run is entered, which fills it in.
        """
        name = f"tf_amp_held_{len(self._contents)}"
        dtype = tf.as_dtype(value.dtype).as_datatype_enum
        self._contents.append(Content(name, dtype, value.shape, device))
        self._values[name] = value
        with self.graph.as_default(), self.graph.device(device):
            handle = tf.raw_ops.VarHandleOp(
                dtype=value.dtype, shape=value.shape, shared_name=name
            )
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype)

    def operation(self, name: str) -> Any:
        """Return an operation by its name behind the prefix."""
        return self.graph.get_operation_by_name(name)

    def tensor(self, name: str, output: int = 0) -> Any:
        """Return an output of an operation."""
        return self.operation(name).outputs[output]

    def callable(self, fetches: Any, feeds: Sequence[Any] = ()) -> Callable[..., Any]:
        """Return a function that runs the graph, given values for feeds."""
        return self.session.make_callable(  # type: ignore[no-any-return]
            fetches, list(feeds) or None, accept_options=True
        )

    def fetch(
        self, fetches: Any, feed: Any = None, *, limit_seconds: float | None = None
    ) -> Any:
        """Run the graph once, and return values in the structure of the fetches.

        Raises:
          tf.errors.DeadlineExceededError: it takes longer than it may.
          tf.errors.OpError: it fails.
        """
        return self.session.run(fetches, feed, options=_options(limit_seconds))

    def seconds(
        self, name: str, limit_seconds: float | None = None, metadata: Any = None
    ) -> float:
        """Run an operation once, and return how long that took; errors as of `fetch`.

        A RunMetadata has the time of every node then.
        """
        options = _options(limit_seconds)
        if metadata is not None:
            has_gpu = bool(tf.config.get_visible_devices("GPU"))
            full, software = options.FULL_TRACE, options.SOFTWARE_TRACE
            options.trace_level = full if has_gpu else software
        if name not in self._timed:
            self._timed[name] = self.callable(self.operation(name))
        run = self._timed[name]
        return elapsed(lambda: run(options=options, run_metadata=metadata))


def _options(limit_seconds: float | None) -> Any:
    if limit_seconds is None:
        return tf.compat.v1.RunOptions()
    return tf.compat.v1.RunOptions(timeout_in_ms=max(1, int(limit_seconds * 1000)))


def elapsed(run: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def quiet_config(*, one_op_at_a_time: bool = False) -> Any:
    """Return the program's own configuration of devices and threads, Grappler off.

    Of one op at a time, it may still use all threads.
    """
    config = own_config()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.optimizer_options.global_jit_level = -1
    config.allow_soft_placement = True
    if one_op_at_a_time:
        config.inter_op_parallelism_threads = 1
    return config


def own_config() -> Any:
    """Return the program's own configuration without what it says of graphs."""
    config = private.session_config()
    config.graph_options.Clear()
    # The threads that all Sessions share may all be waiting for what is run here.
    config.use_per_session_threads = True
    return config


class StuckError(AmpError, RuntimeError):
    """Work did not end in time, and was given up."""


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
            with stack.leaving_graphs_alone():
                results.append(work(lambda: unwanted.is_set() or _leaving.is_set()))
        except BaseException as error:
            errors.append(error)
        # What the thread has freed goes back to the system; glibc would keep it, and
        # another libc has no such function.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

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


def most_bytes(device_type: str = "CPU") -> int:
    """Return how many bytes a measurement may hold now: a quarter of what is free."""
    return int(SHARE * free_bytes(device_type))


def free_bytes(device_type: str = "CPU") -> int:
    """Return the bytes that the machine and the control group leave, or every GPU."""
    limits: list[int] = []
    if device_type == "CPU":
        (about,) = _texts(_MEMORY) or ("",)
        for line in about.splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
        group = _texts(
            *(_GROUP / f"memory.{name}" for name in ("max", "current", "stat"))
        )
        if group and group[0].strip().isdigit():
            most, used, statistics = group
            # Pages of files count as used, but are given up for whoever needs memory.
            fields = map(str.split, statistics.splitlines())
            spare = sum(int(size) for name, size in fields if name == "inactive_file")
            limits.append(max(int(most) - int(used) + spare, 0))
    else:
        for name, most_bytes in _pools(device_type):
            # TensorFlow keeps no account of some devices.
            with contextlib.suppress(ValueError):
                used_bytes = tf.config.experimental.get_memory_info(name)["current"]
                limits.append(max(most_bytes - int(used_bytes), 0))
    return min(limits, default=_UNKNOWN_BYTES)


@functools.cache
def _pools(device_type: str) -> tuple[tuple[str, int], ...]:
    """Return TensorFlow's devices of a type, and the most that each may allocate."""
    with GraphRun({}) as run:
        present = run.session.list_devices()
    devices = [each for each in present if each.device_type == device_type]
    # Of several processes, each asks for its own device.
    names = (f"/{device.name.rpartition('/')[2]}" for device in devices)
    return tuple(zip(names, (d.memory_limit_bytes for d in devices), strict=True))


def _texts(*paths: pathlib.Path) -> tuple[str, ...]:
    """Return what files of the system hold; nothing where one cannot be read."""
    try:
        return tuple(path.read_text(errors="replace") for path in paths)
    except OSError:
        return ()
