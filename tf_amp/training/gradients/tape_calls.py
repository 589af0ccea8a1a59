"""One count for all gradients that are taken of one tape.

A persistent tape may be asked for gradients several times, and any tape within a loop.
All of these are scaled alike, by the scale as it was where the tape was begun; together
they lower it once, or count one finite step: those taken first are then the ones whose
size a loss scale sees. So do those that `tf.gradients` takes within a loop, of tensors
from outside. What a tape records anew, entered again or reset, counts anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private.tracing import kept_with, outwards, traced_graph
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.training.finiteness.of_gradients import is_scalable
from tf_amp.training.gradients.unscaling import ScaledCall
from tf_amp.training.loss_scale.scale_state import ScaleState, Vectors
from tf_amp.training.loss_scale.variables import states_in_use

# Of a tape.
_RECORD = "_tf_amp_record"


@dataclasses.dataclass
class _Record:
    """What is known of a tape.

    Attributes:
      calls: by graph and loss scale, which they keep alive.
      home: the graph that it was begun in; None of eager execution.
      readings: what the states held then; None where votes report inner gradients.
    """

    calls: dict[tuple[int, int], ScaledCall] = dataclasses.field(default_factory=dict)
    home: weakref.ref[Any] | None = None
    readings: dict[ScaleState, Vectors] | None = None


def note_entered(tape: Any) -> None:
    """Remember the graph that a tape is entered in, before it is."""
    record = _record_of(tape)
    if not private.holds_recording(tape):
        record.calls.clear()
    record.home = _present_graph()
    record.readings = _readings_here()


def note_reset(tape: Any) -> None:
    """Remember the graph that a tape is reset in."""
    record = _record_of(tape)
    record.calls.clear()
    record.home = _present_graph()


def scaled_call_of(tape: Any, loss_scale: LossScale, sources: Any) -> ScaledCall:
    """Return the call that gradients taken here of a tape belong to."""
    home = _home_seen_from_here(tape)
    record, key = _record_of(tape), (id(home), id(loss_scale))
    if key in record.calls:
        return record.calls[key].again()
    here = traced_graph()
    is_here = home is here
    with contextlib.nullcontext() if is_here else home.as_default():
        call = ScaledCall(loss_scale, sources)
        if record.readings is not None:
            call = call.begun_with(record.readings)
        record.calls[key] = call
    return call if is_here else call.again()


def call_for_sources(loss_scale: LossScale, sources: Any) -> ScaledCall:
    """Return the call that gradients of some tensors, taken here, belong to."""
    home = _graph_of(tf.nest.flatten(sources))
    if home is None or home is traced_graph() or not _is_around(home):
        return ScaledCall(loss_scale, sources)
    with home.as_default():
        call = ScaledCall(loss_scale, sources)
    return call.again()


def call_of_loop(tapes: list[Any], call: ScaledCall) -> ScaledCall:
    """Return the call that counts for a vectorized loop.

    Args:
      tapes: that gradients are taken of in its body.
      call: that they are scaled by.
    """
    here = traced_graph()
    for tape in tapes:
        if _home_seen_from_here(tape) is not here or _home_of(tape) is not here:
            continue
        calls, key = _record_of(tape).calls, (id(here), id(call.loss_scale))
        if key in calls:
            return calls[key].again()
        calls[key] = call
    return call


def _record_of(tape: Any) -> _Record:
    record: _Record = kept_with(tape, _RECORD, _Record)
    return record


def _present_graph() -> weakref.ref[Any] | None:
    graph = traced_graph()
    return None if graph is None else weakref.ref(graph)


def _readings_here() -> dict[ScaleState, Vectors] | None:
    """Return what the states here hold, under eager execution."""
    if not tf.executing_eagerly():
        return None
    strategy = tf.distribute.get_strategy()
    return {
        state: state.read()
        for state in states_in_use()
        if state.strategy is strategy and not state.is_per_worker
    }


def _home_seen_from_here(tape: Any) -> Any:
    """Return where a tape was begun, if that is around the present graph; else it."""
    home = _home_of(tape)
    return home if _is_around(home) else traced_graph()


def _is_around(home: Any) -> bool:
    """Return whether a graph is the present one, or one that this is a part of."""
    here = traced_graph()
    # Each call of a function counts, whatever is eager around it.
    return here is home or any(graph is home for graph in outwards(here))


def _graph_of(sources: list[Any]) -> Any:
    """Return the graph that all of some tensors belong to; None: no such graph.

    Variables, whose handles optimizers take gradients of, change from step to step.
    """
    values = [s for s in sources if is_scalable(s) and s.dtype == s.dtype.base_dtype]
    if len(values) < len(sources):
        return None
    graphs = {getattr(source, "graph", None) for source in sources}
    return graphs.pop() if len(graphs) == 1 else None


def _home_of(tape: Any) -> Any:
    home = _record_of(tape).home
    return None if home is None else home()
