"""Time ops inside a graph, on the present device.

An op is run several times in a row, each run waiting for the one before, on inputs held
in variables; the same graph without the op is timed in turn with it and subtracted.
TensorFlow's graph optimizations are off, so that the op stays as written, while
oneDNN's rewriting of kernels happens as in any program. What is timed, how often and
which of the figures counts is the caller's affair.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from grappler_pass.cached_attributes import cached_attribute
from tf_amp import _tensorflow_private as private
from tf_amp.measuring.steps.comparison import error_of_median

# A run of a chain takes long against the cost of starting it, and so long that the
# threads of one op do not share a core, as they often do at first: products of 0.4 ms,
# run one at a time, took 1 ms in 6 of 10 measurements, and never in chains of 6 ms, nor
# do they in a step (2 cores of a virtual machine).
_CHAIN_SECONDS = 5e-3
_LONGEST_CHAIN = 16
# Fewer times of one thing are no reading of it.
_FEWEST_TIMES = 3
# Standard errors that a difference must exceed to be more than noise.
_BEYOND_NOISE = 2.0

Call = Callable[[Sequence[Any]], Any]


class Reading(NamedTuple):
    """What something takes.

    Attributes:
      seconds: the median of several times.
      error: the standard error of that, in seconds.
    """

    seconds: float
    error: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Reading | None:
        """Return the reading of several times; None of too few."""
        if len(times) < _FEWEST_TIMES:
            return None
        return cls(statistics.median(times), error_of_median(times))

    def minus(self, other: Reading) -> Reading | None:
        """Return the difference; None where it is no more than noise."""
        error = math.hypot(self.error, other.error)
        difference = self.seconds - other.seconds
        return (
            Reading(difference, error) if difference > _BEYOND_NOISE * error else None
        )


def chain_length(seconds: float) -> int:
    """Return how many runs of an op to time at once that takes about so long."""
    return max(1, min(int(_CHAIN_SECONDS / max(seconds, 1e-9)), _LONGEST_CHAIN))


class Chain:
    """Runs of one op in a row, and the same graph without them.

    Attributes:
      length: how many runs.
      runs: seconds of all of them, by turn.
      bases: seconds without them.
    """

    def __init__(self, session: Any, last: Any, base: Any, length: int) -> None:
        """Take the last of `length` runs, and what comes before the first."""
        self._session = session
        self._last = last
        self._base = base
        self.length = length
        self.runs: list[float] = []
        self.bases: list[float] = []

    @cached_attribute
    def run(self) -> Callable[[], object]:
        """All runs of the op."""
        return self._session.make_callable(self._last)  # type: ignore[no-any-return]

    @cached_attribute
    def base(self) -> Callable[[], object]:
        """What it takes to start and end, without the op."""
        return self._session.make_callable(self._base)  # type: ignore[no-any-return]

    def turn(self) -> None:
        """Run the op and its base once, and note the seconds."""
        self.runs.append(elapsed(self.run))
        self.bases.append(elapsed(self.base))

    def reading(self) -> Reading | None:
        """Return what one execution of the op takes; None where that is noise."""
        runs, bases = Reading.of(self.runs), Reading.of(self.bases)
        whole = runs.minus(bases) if runs and bases else None
        return whole and Reading(whole.seconds / self.length, whole.error / self.length)


class TimingGraph:
    """A graph that inputs and chains of ops are added to, with its Session.

    What reads an input is added before the input is filled: TensorFlow warns of ops
    that get a reader after they were run.
    """

    def __init__(self, graph: tf.Graph, session: Any, device: str) -> None:
        """Take an empty graph and its Session; see `timing_graph`."""
        self._graph = graph
        self._session = session
        self._device = device
        self._held = 0
        self._fed: list[Any] = []
        self._fills: list[Any] = []
        self._arrays: list[Any] = []

    def hold(self, arrays: Sequence[Any]) -> list[Any]:
        """Add variables for arrays, and return the tensors that read them."""
        with self._building():
            return [self._variable(array) for array in arrays]

    def fill(self) -> None:
        """Put the arrays into the variables that were added since the last time."""
        with self._building():
            filled = tf.group(*self._fills)
        self._session.make_callable(filled, feed_list=self._fed)(*self._arrays)
        self._fed, self._fills, self._arrays = [], [], []

    def constants(self, arrays: Sequence[Any]) -> list[Any]:
        """Put small arrays into the graph itself."""
        with self._building():
            return [tf.constant(array) for array in arrays]

    def chain(self, call: Call, sets: Sequence[Sequence[Any]], length: int) -> Chain:
        """Return so many runs of an op in a row, which take the sets of inputs in turn.

        `call` makes the op from one set, of tensors from `hold` and `constants`.
        """
        used = sets[:length]
        with self._building():
            with self._graph.control_dependencies(
                [tensor.op for tensors in used for tensor in tensors]
            ):
                base = last = tf.no_op()
            for index in range(length):
                with self._graph.control_dependencies([last]):
                    last = call(used[index % len(used)])
        return Chain(self._session, last, base, length)

    @contextlib.contextmanager
    def _building(self) -> Iterator[None]:
        with self._graph.as_default(), self._graph.device(self._device):
            yield

    def _variable(self, array: Any) -> Any:
        """Add a variable, and return what reads it."""
        self._held += 1
        fed = tf.compat.v1.placeholder(array.dtype, array.shape)
        handle = tf.raw_ops.VarHandleOp(
            dtype=fed.dtype, shape=fed.shape, shared_name=f"held{self._held}"
        )
        self._fed.append(fed)
        self._fills.append(tf.raw_ops.AssignVariableOp(resource=handle, value=fed))
        self._arrays.append(array)
        return tf.raw_ops.ReadVariableOp(resource=handle, dtype=fed.dtype)


@contextlib.contextmanager
def timing_graph(device: str) -> Iterator[TimingGraph]:
    """Open a Session of its own; what it holds is freed at the end.

    With its first run that takes about 2 ms, as it does to add an op to one that is
    open and run that (median of 20, two CPU cores).
    """
    graph = tf.Graph()
    config = quiet_config()
    config.inter_op_parallelism_threads = 1
    session = tf.compat.v1.Session(graph=graph, config=config)
    try:
        yield TimingGraph(graph, session, device)
    finally:
        session.close()


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
