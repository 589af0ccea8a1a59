"""Which call gradients belong to: one count for all that are taken of one tape.

A persistent tape may be asked for gradients several times, and any tape within a loop.
All of these are scaled alike, by the scale as it was where the tape was begun; together
they lower it once, or count one finite step: those taken first are then the ones whose
size a loss scale sees. So do those that `tf.gradients` takes within a loop, of tensors
from outside. What a tape records anew, entered again or reset, counts anew.

Which call, and which vectorized loop, a thread is in the middle of is known here too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private import wrapping
from tf_amp._tensorflow_private.tracing import kept_with, outwards, traced_graph
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.tracing.stack import holding
from tf_amp.training import scale_at_run_time
from tf_amp.training.finite_flags import descends_from
from tf_amp.training.scale_state import ScaleState, Vectors, states_in_use
from tf_amp.training.scale_update import is_scalable
from tf_amp.training.scaling import Scaling, scaling_of

# Of a tape.
_RECORD = "_tf_amp_record"


@dataclasses.dataclass
class _Record:
    """What is known of a tape.

    Attributes:
      calls: by graph and loss scale, which they keep alive.
      home: returns the graph that it was begun in, if that still is; None of eager
        execution.
      readings: what the states held then; None where flags report inner gradients.
    """

    calls: dict[tuple[int, int], Scaling] = dataclasses.field(default_factory=dict)
    home: Callable[[], Any] = lambda: None
    readings: dict[ScaleState, Vectors] | None = None


def note_entered(tape: Any) -> None:
    """Remember the graph that a tape is entered in, before it is."""
    record = _record_of(tape)
    if not private.holds_recording(tape):
        record.calls.clear()
    record.home, record.readings = _present_graph(), None
    if tf.executing_eagerly():
        strategy = tf.distribute.get_strategy()
        record.readings = {
            state: state.read()
            for state in states_in_use()
            if state.strategy is strategy and not state.is_per_worker
        }


def note_reset(tape: Any) -> None:
    """Remember the graph that a tape is reset in."""
    record = _record_of(tape)
    record.calls.clear()
    record.home = _present_graph()


def scaling_of_tape(tape: Any, loss_scale: LossScale, sources: Any) -> Scaling:
    """Return the call that gradients taken here of a tape belong to."""
    home = _home_seen_from_here(tape)
    record, key = _record_of(tape), (id(home), id(loss_scale))
    if key in record.calls:
        return record.calls[key].again()
    here = traced_graph()
    is_here = home is here
    with contextlib.nullcontext() if is_here else home.as_default():
        call = scaling_of(loss_scale, sources)
        if record.readings is not None:
            # Those made since are missing.
            begun = record.readings.get(call.state) or call.state.initial()
            call = dataclasses.replace(call, begun=begun)
        record.calls[key] = call
    return call if is_here else call.again()


def scaling_for_sources(loss_scale: LossScale, sources: Any) -> Scaling:
    """Return the call that gradients of some tensors, taken here, belong to."""
    flat = tf.nest.flatten(sources)
    graphs = {getattr(source, "graph", None) for source in flat}
    # Variables, whose handles optimizers take gradients of, change from step to step.
    are_values = all(is_scalable(s) and s.dtype == s.dtype.base_dtype for s in flat)
    home = graphs.pop() if are_values and len(graphs) == 1 else None
    if home is None or home is traced_graph() or not _is_around(home):
        return scaling_of(loss_scale, sources)
    with home.as_default():
        call = scaling_of(loss_scale, sources)
    return call.again()


def scaling_of_loop(tapes: list[Any], call: Scaling) -> Scaling:
    """Return the call that counts for a vectorized loop.

    Args:
      tapes: that gradients are taken of in its body.
      call: that they are scaled by.
    """
    here = traced_graph()
    for tape in tapes:
        record, key = _record_of(tape), (id(here), id(call.state.loss_scale))
        if record.home() is not here:
            continue
        calls = record.calls
        if key in calls:
            return calls[key].again()
        calls[key] = call
    return call


def _record_of(tape: Any) -> _Record:
    record: _Record = kept_with(tape, _RECORD, _Record)
    return record


def _present_graph() -> Callable[[], Any]:
    graph = traced_graph()
    return _Record.home if graph is None else weakref.ref(graph)


def _home_seen_from_here(tape: Any) -> Any:
    """Return where a tape was begun, if that is around the present graph; else it."""
    home = _record_of(tape).home()
    return home if _is_around(home) else traced_graph()


def _is_around(home: Any) -> bool:
    """Return whether a graph is the present one, or one that this is a part of."""
    here = traced_graph()
    # Each call of a function counts, whatever is eager around it.
    return here is home or any(graph is home for graph in outwards(here))


class Loop:
    """The body of a vectorized loop, whose gradients are checked after the loop.

    Attributes:
      call: that all gradients in the body are scaled by.
      finite: whether they are, one bool scalar for each time that some are taken.
      gradients: as the body sees them.
      tapes: that they were taken of.
      made_of_gradients: whether each result of the body is.
    """

    def __init__(self, call: Scaling) -> None:
        """Begin with no gradients taken."""
        self.call = call
        self.finite: list[Any] = []
        self.gradients: list[Any] = []
        self.tapes: list[Any] = []
        self.made_of_gradients: list[bool] = []

    def clear(self) -> None:
        """Forget what was taken in a body, which may be traced more than once."""
        self.finite.clear()
        self.gradients.clear()

    def note_results(self, results: Any) -> None:
        """Note which results of the body are made of gradients."""
        known = {gradient.ref() for gradient in self.gradients}
        self.made_of_gradients = [
            descends_from(
                tf.nest.flatten(result, expand_composites=True),
                lambda tensor: tensor.ref() in known,
            )
            for result in tf.nest.flatten(results)
        ]

    def split(self, results: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
        """Return the stacked results made of gradients, and what puts others there."""
        flat = tf.nest.flatten(results)
        places = [i for i, is_made in enumerate(self.made_of_gradients) if is_made]

        def put(instead: Sequence[Any]) -> Any:
            for i, result in zip(places, instead, strict=True):
                flat[i] = result
            return tf.nest.pack_sequence_as(results, flat)

        return [flat[i] for i in places], put


# Whether gradients are parts of those of a call, and of which, if that is known.
_at_work: ContextVar[tuple[bool, Scaling | None]] = ContextVar(
    "tf_amp_call_at_work", default=(False, None)
)
_loop: ContextVar[Loop | None] = ContextVar("tf_amp_loop_at_work", default=None)


def is_differentiating() -> bool:
    """Return whether the running code starts from gradients that are scaled already."""
    return _at_work.get()[0] or scale_at_run_time.is_differentiating()


def call_at_work() -> Scaling | None:
    """Return the call whose scaled gradients the running code computes, if any."""
    return _at_work.get()[1]


def loop_at_work() -> Loop | None:
    """Return the loop whose body is being traced, if any."""
    return _loop.get()


@contextlib.contextmanager
def differentiating(call: Scaling | None = None) -> Iterator[None]:
    """Leave gradients asked for inside alone, as parts of those of a call."""
    with holding(_at_work, (True, call)):
        yield


def computed(call: Scaling, compute: Callable[[], Any]) -> Any:
    """Compute the scaled gradients of a call."""
    with differentiating(call):
        # In the body of a vectorized loop nothing can be assigned.
        if _loop.get() is not None:
            return compute()
        return scale_at_run_time.computed_at(
            call.scale, compute, is_of_state=call.is_known_ahead
        )


def in_loop(loop: Loop) -> AbstractContextManager[None]:
    """Let gradients taken inside be those of a loop's body."""
    return holding(_loop, loop)


@wrapping
def passing_through_python(
    make: Callable[..., Any], func: Any, *args: Any, **kwargs: Any
) -> Any:
    """Make an operation of a Python function, with gradients left alone.

    The gradient of a `tf.py_function` asks a tape for gradients when it runs, on a
    thread of the runtime's: these start from scaled ones.
    """
    if kwargs.get("is_grad_func"):
        func = differentiating()(func)
    return make(func, *args, **kwargs)
