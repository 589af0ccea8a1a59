"""Take the record of a training under way, and put a training back to a record.

What was restored and has found no use yet is kept in what is saved next.
"""

from __future__ import annotations

from typing import Any

from tf_amp.checkpoints import plans
from tf_amp.checkpoints.record import Record
from tf_amp.loss_scaling import resumption
from tf_amp.loss_scaling.scale_state import ScaleState
from tf_amp.loss_scaling.variables import latest_state, states_here
from tf_amp.steps import skipping


def take(session: Any = None) -> Record:
    """Return the record of this training as it is now.

    Args:
      session: for a training in a `tf.Graph`.
    """
    scales = (
        resumption.saved_scale(state.loss_scale, state.evaluate_all(session))
        for state in _states_in_use()
    )
    return Record(
        loss_scales=(*scales, *resumption.still_waiting()),
        plans=plans.MEMORY.known(),
        has_optimizer=skipping.have_applied(),
    )


def put_back(record: Record, path: str, session: Any = None) -> list[Any]:
    """Go on from a record: states that exist now, and those that are made later.

    Args:
      record: an empty one lets every loss scale start fresh, and say so.
      path: of the checkpoint, for messages.
      session: for a training in a `tf.Graph`.

    Returns:
      What is still to be run in a Session, where none was given.

    Raises:
      CheckpointMismatch: the record is that of another loss scale.
    """
    plans.MEMORY.resume(record.plans)
    resumption.wait(record.loss_scales, path)
    operations: list[Any] = []
    for state in states_here():
        values = resumption.resumed(state.loss_scale, state.fresh)
        if state.in_graph and session is None:
            operations += state.write(values, values)
        else:
            state.replace(values, session)
    return operations


def _states_in_use() -> list[ScaleState]:
    """Return one state of each loss scale: of several, under strategies, the latest."""
    states, latest = states_here(), latest_state()
    found = {id(state.loss_scale): state for state in states}
    if latest is not None and any(state is latest for state in states):
        found[id(latest.loss_scale)] = latest
    return list(found.values())
