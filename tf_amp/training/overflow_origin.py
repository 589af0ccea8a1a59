"""Which operation made the first value that was not finite, when a step overflowed.

A step that overflows passes its inputs on, which costs other steps nothing, and is run
again by itself (`overflow_search`) while training goes on. That takes about as long as
tracing, so it is done for the 1st, 2nd, 4th, 8th ... overflow of a function or graph,
and each origin is reported once. At the lowest scale it is done at once, if what is
found is to go back to float32, until it helps no more. What XLA compiles is not looked
into. Of a program that traces without end, only the latest graphs are kept.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from grappler_pass.annotations import REWRITTEN, WATCH
from grappler_pass.eligibility.exclusions import differentiated, without_call_scopes
from grappler_pass.fork_safety import per_process, renewed_lock
from tf_amp._tensorflow_private import tracing
from tf_amp._tensorflow_private.tracing import (
    frames_of,
    operations_behind,
    put_attribute,
)
from tf_amp._tensorflow_private.training import in_xla_context
from tf_amp.compare import call_sites
from tf_amp.errors import AmpError
from tf_amp.latest import Latest
from tf_amp.message_codes import Code
from tf_amp.report.counts import counted, ordinal
from tf_amp.rewriting import host
from tf_amp.tracing import stamp_reader
from tf_amp.tracing.stamp_reader import forward_names
from tf_amp.training.scale_state import place_here, runs_here

if TYPE_CHECKING:
    from tf_amp.rewriting.arriving_graphs import Arrival
    from tf_amp.training.overflow_search import Search


class OverflowOrigin(NamedTuple):
    """The first operation, in the order of execution, with a value that is not finite.

    Attributes:
      op: its name.
      kind: what it computes, such as "MatMul".
      layer: the name scope around it, which Keras makes of its layers' names; of a
        gradient, that of the operation it belongs to.
      dtype: that could not hold the value.
      is_gradient: whether it belongs to the backward pass, where a smaller loss scale
        helps.
    """

    op: str
    kind: str
    layer: str
    dtype: str
    is_gradient: bool = False

    def __str__(self) -> str:
        """Return one line for the log."""
        where = f" in {self.layer}" if self.layer else ""
        what = "gradient" if self.is_gradient else "forward pass"
        return f"{self.op} ({self.kind}, {self.dtype}){where}, {what}"


def origin_from(culprit: Any) -> OverflowOrigin:
    """Say where a node of a rewritten graph stands in the user's program.

    Args:
      culprit: what `overflow_search` says made the first infinity or NaN.
    """
    node = culprit.node
    if culprit.is_scale:
        return OverflowOrigin("the loss scale", node.op, "", culprit.dtype, True)
    name = without_call_scopes(node.name)
    forward_ops = forward_names(node)
    forward = (forward_ops or (differentiated(name) or name,))[-1]
    layer = forward.rpartition("/")[0]
    return OverflowOrigin(name, node.op, layer, culprit.dtype, culprit.is_gradient)


def outcome_of(running: bytes, counts: tuple[int, int], is_gradient: bool) -> str:
    """Say what became of a step that overflowed.

    Args:
      running: the graph that it ran, serialized.
      counts: how many overflows it has had by then, and calls; 0: that is not known.
      is_gradient: whether the overflow began in the backward pass.
    """
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.rewriting.second_try import skips, tries_again

    nodes = GraphDef.FromString(running).node
    if skips(nodes):
        overflows, calls = counts
        since = f"in {counted(calls, 'call')}" if calls else "so far"
        return f"this step was skipped, the {ordinal(overflows)} {since}"
    if not tries_again(nodes):
        return (
            "the gradients are returned unchanged; an optimizer that applies them "
            "skips its step"
        )
    if is_gradient:
        return "the gradients were taken again without the loss scale"
    return "the gradients are used unchanged, since no loss scale helps"


def warn_of_overflow(scale: float) -> None:
    """Say once that gradients are not finite, unless an optimizer is in use.

    Args:
      scale: of the loss when they overflowed.
    """
    from tf_amp.training.optimizers import have_applied

    if have_applied():
        return
    Code.OVERFLOW.warn_once(
        "Gradients overflowed at loss scale %g: the next are scaled lower. "
        "Optimizers, and assignments to variables, skip such a step; "
        "tf_amp.loss_scale_state() counts them. A tf.function or graph with neither "
        "takes its gradients again without a loss scale. Elsewhere some are infinite "
        'or NaN, and loss_scale="none" scales nothing.',
        scale,
    )


# First parts of the names of what cannot be asked a second time.
_SOURCES = (
    "EagerPyFunc",
    "IteratorGetNext",
    "LookupTableFind",
    "OptionalGetValue",
    "Placeholder",
    "PyFunc",
    "QueueDequeue",
    "ReaderRead",
)


def watch(finite: Any, state: Mapping[str, Any], loss_scale: Any) -> list[Any]:
    """Pass the inputs of the step being traced on where it overflows.

    Args:
      finite: whether gradients are, bool scalar.
      state: of the loss scale as the step has used it.
      loss_scale: its specification.

    Returns:
      What must run with the step.
    """
    if tf.executing_eagerly() or in_xla_context():
        return []
    in_function = finite.graph.building_function
    asked = None if in_function else finite
    pass_inputs = passing_inputs(finite.graph, state, loss_scale, asked)

    def passed() -> Any:
        with tf.control_dependencies(pass_inputs(tf.constant(False))):
            return tf.constant(False)

    return [tf.cond(finite, lambda: tf.constant(True), passed)]


def passing_inputs(
    graph: Any, state: Mapping[str, Any], loss_scale: Any, asked: Any = None
) -> Callable[[Any], list[Any]]:
    """Return what adds the operation that passes a step's inputs on.

    It is called within a branch that a step takes that overflows, and few others do,
    with a bool scalar, true where gradients are finite.

    Args:
      graph: that the step is traced in.
      state: of the loss scale as the step has used it.
      loss_scale: its specification.
      asked: what the step asks of its gradients. A `tf.Graph` holds other steps too,
        whose inputs are then not fed; None: everything in the graph is the step's.
    """
    if not runs_here():
        # Another process cannot call what is registered here.
        return lambda finite: []
    place = f"{place_here() or ''}/device:CPU:0"
    watched = Watch(graph, loss_scale)
    # What comes into a step from outside: arguments, and data it fetches.
    operations = graph.get_operations()
    if asked is not None:
        behind = set(operations_behind(asked.op))
        operations = [op for op in operations if op in behind]
    inputs = [
        tensor
        for op in operations
        # What an old loop holds is out of reach.
        if op.type.startswith(_SOURCES) and not frames_of(op)
        for tensor in op.outputs
        if tensor.dtype.is_numpy_compatible and tensor.dtype.base_dtype == tensor.dtype
    ]

    def pass_inputs(finite: Any) -> list[Any]:
        with tf.device(place):
            done = tf.numpy_function(
                watched.record,
                [state["scale"], *inputs, finite],
                [],
                name="overflow_inputs",
            )
        put_attribute(done, WATCH, s=watched.number.encode())
        return [done]

    return pass_inputs


_WATCH = WATCH.encode()
# Those of large models take megabytes.
_GRAPHS_KEPT = 256
_ORIGINS_KEPT = 256
# Each holds the variables of a step.
_LOOKS_AT_ONCE = 4
_PATIENCE_SECONDS = 60.0


class Watch:
    """What is known of one call for gradients: where it is, and how it has overflowed.

    Attributes:
      number: in the attribute of the node that calls `record`.
      graph: the function or graph as traced.
      origin: found last; None before.
      float32: nodes that went back to float32, when the loss scale was at its minimum.
      times_returned: how often some did.
    """

    def __init__(self, graph: Any, loss_scale: Any) -> None:
        """Watch a call for gradients that is being traced."""
        self.number = str(next(_numbers))
        self.graph = weakref.ref(graph)
        self.origin: OverflowOrigin | None = None
        self.float32: tuple[str, ...] = ()
        self.times_returned = 0
        self._loss_scale = loss_scale
        self._overflows = 0
        self._calls = call_sites.CallSite()
        self._pending: Sequence[Any] | None = None
        self._is_looking = False
        # In which graph there was nothing more to put back to float32.
        self._in_vain: bytes | None = None
        with _lock:
            _watches[self.number] = self
        weakref.finalize(self, _graphs.drop, self.number).atexit = False

    def keep_graph(self, given: bytes, running: bytes) -> None:
        """Remember the graph that runs from now on, its origin, and its calls."""
        self._calls = call_sites.current().site or call_sites.CallSite()
        before = self._graphs()[0] if REWRITTEN.encode() in given else given
        _graphs.put(self.number, (before, running))

    def _graphs(self) -> tuple[bytes, bytes]:
        """Return the graph before it was rewritten, and as it runs, if still known."""
        return _graphs.get(self.number) or (b"", b"")

    def record(self, *inputs: Any) -> None:
        """Take the inputs of a step, and whether it was finite; called by the runtime.

        Of a step that was, nothing is kept.
        """
        *values, finite = inputs
        if finite:
            return
        scale = float(values[0])
        warn_of_overflow(scale)
        with _unknown_where_it_fails():
            self._overflows += 1
            if self._is_at_minimum(scale) and self._in_vain != self._graphs()[1]:
                is_due = not self._is_looking
            else:
                is_due = self._overflows & (self._overflows - 1) == 0
            if not is_due:
                return
            copies = [np.array(value) for value in values]
            graph = self.graph()
            if graph is None or not graph.building_function:
                self._pending = copies
            else:
                self._look_into(copies, stamp_reader.values_of_function(graph))

    def look_into_pending(self, session: Any) -> None:
        """Look into an overflow of the step that a Session has just run."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        with _unknown_where_it_fails():
            self._look_into(pending, stamp_reader.values_of_session(session))
        if self._is_at_minimum(float(pending[0])):
            # The next step of a Session is to have what comes of it.
            _join_threads()

    def _look_into(self, inputs: Sequence[Any], variables: Any) -> None:
        """Begin to run a step again, with all that it needs of the program."""
        from tf_amp.training.overflow_search import Search

        given, running = self._graphs()
        before = None
        try:
            search = Search(running, self.number, inputs, variables)
            if self._is_at_minimum(float(inputs[0])):
                before = Search(given, self.number, inputs, variables)
        except Exception:
            self._in_vain = running
            raise
        counts = self._overflows, self._calls.count
        # Training goes on meanwhile: `run_in_own_thread` is for what is waited for. Not
        # a daemon, as the runtime's own threads are: an interpreter that ends while one
        # is inside TensorFlow takes the process down.
        thread = threading.Thread(
            target=functools.partial(self._find, running, search, before, counts),
            name="tf_amp_overflow_origin",
            daemon=False,
        )
        with _lock:
            _threads[:] = (other for other in _threads if other.is_alive())
            self._is_looking = len(_threads) < _LOOKS_AT_ONCE
            if self._is_looking:
                _threads.append(thread)
                thread.start()

    def _is_at_minimum(self, scale: float) -> bool:
        wanted = getattr(self._loss_scale, "at_minimum", "") == "float32"
        return wanted and scale <= float(self._loss_scale.minimum)

    def _find(
        self,
        running: bytes,
        search: Search,
        before: Search | None,
        counts: tuple[int, int],
    ) -> None:
        """Run the step again, report what was found, and see what returns to float32.

        Args:
          running: the graph.
          search: looks into it.
          before: looks into what it was made of, if anything is to return.
          counts: of overflows and of calls by then, with that of the step.
        """
        helps = False
        with _unknown_where_it_fails():
            culprit = search.first_not_finite()
            if culprit is not None:
                self.origin = origin_from(culprit)
                _latest.put(id(self._loss_scale), (self._loss_scale, self.origin))
                if host.current().is_news(self.origin):
                    code = Code.OVERFLOW_ORIGIN
                    tell = code.inform if self.origin.is_gradient else code.warn
                    outcome = outcome_of(running, counts, self.origin.is_gradient)
                    tell("not finite first: %s; %s", self.origin, outcome)
            if culprit is not None and before is not None:
                name, too_large = culprit.node.name, before.too_large()
                known = self.float32
                names = (*known, name, *search.feeding(name), *too_large)
                self.float32 = tuple(dict.fromkeys(names))
                helps = len(self.float32) > len(known)
                if helps:
                    self.times_returned += 1
                    Code.BACK_TO_FLOAT32.warn(
                        "The loss scale is at its minimum: back to float32 goes %s, "
                        "with what feeds it and what float16 cannot hold (%d "
                        "operations).",
                        self.origin,
                        len(self.float32) - len(known),
                    )
                    tracing.forget_kernels()
        if before is not None and not helps:
            self._in_vain = running
        self._is_looking = False


_numbers = itertools.count(1)
_lock = renewed_lock()
_watches: weakref.WeakValueDictionary[str, Watch] = weakref.WeakValueDictionary()
_threads: list[threading.Thread] = []
# By number of the watch: before it was rewritten, and as it runs.
_graphs: Latest[str, tuple[bytes, bytes]] = Latest(_GRAPHS_KEPT)
# By identity of a loss scale, which is kept alive therefore.
_latest: Latest[int, tuple[Any, OverflowOrigin]] = Latest(_ORIGINS_KEPT)


def keeping_graph(arrival: Arrival) -> None:
    """Remember a graph as given and as it will run, if gradients are watched in it."""
    for watched in _watches_in(arrival):
        watched.keep_graph(arrival.data, arrival.running_data)


def float32_nodes(arrival: Arrival) -> tuple[tuple[str, str], ...]:
    """Name the nodes that are to be float32 again, each with the reason."""
    reason = "it overflowed at the lowest loss scale"
    names = (name for w in _watches_in(arrival) for name in w.float32)
    return tuple((name, reason) for name in names)


def latest_origin(loss_scale: Any) -> OverflowOrigin | None:
    """Return the origin found last of gradients that a loss scale has scaled.

    It waits for what is being looked into.
    """
    _join_threads()
    latest = _latest.get(id(loss_scale))
    return latest[1] if latest else None


def look_after_run(result: Any, session: Any, *args: Any, **kwargs: Any) -> None:
    """Look into an overflow of what a Session has run, if there was one."""
    for watched in _watches_of(session.graph):
        watched.look_into_pending(session)


def times_returned(graph: Any) -> int:
    """Return how often operations of a Session's graph have gone back to float32."""
    return sum(watched.times_returned for watched in _watches_of(graph))


def _watches_of(graph: Any) -> list[Watch]:
    return [w for w in tuple(_watches.values()) if w.graph() is graph]


def _join_threads() -> None:
    for thread in tuple(_threads):
        thread.join(_PATIENCE_SECONDS)


def _watches_in(arrival: Arrival) -> tuple[Watch, ...]:
    if _WATCH not in arrival.data:
        return ()
    nodes = arrival.running.node
    numbers = [n.attr[WATCH].s.decode() for n in nodes if WATCH in n.attr]
    found = (_watches.get(number) for number in numbers)
    return tuple(watched for watched in found if watched is not None)


@contextlib.contextmanager
def _unknown_where_it_fails() -> Iterator[None]:
    """Say that a diagnosis failed: no reason for the program to fail."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, AmpError) else f"{type(error).__name__}: "
        cause = kind + str(error).partition("\n")[0]
        logging.log_first_n(
            logging.INFO, "The origin of an overflow is not known: %s", 3, cause
        )


per_process(_threads.clear)
