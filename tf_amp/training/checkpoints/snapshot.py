"""Take the record of a training under way, and put a training back to a record.

What was restored and has found no use yet is kept in what is saved next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_amp.rewriting import host
from tf_amp.training.checkpoints.record import Record
from tf_amp.training.loss_scale import resumption
from tf_amp.training.loss_scale.saved_scale import saved_scale
from tf_amp.training.loss_scale.scale_state import ScaleState
from tf_amp.training.loss_scale.variables import latest_state, states_here
from tf_amp.training.loss_scale.weights import Handles
from tf_amp.training.optimizers import skipping


def take(weights: Handles, session: Any = None) -> Record:
    """Return the record of this training as it is now.

    Args:
      weights: that are saved with it.
      session: for a training in a `tf.Graph`.
    """
    states = _states_in_use()
    # Weights that were never trained, such as an average of others, go with all.
    own = [state for state in states if state.has_trained(weights)]
    scales = (
        saved_scale(state.loss_scale, state.evaluate(session))
        for state in own or states
    )
    return Record(
        loss_scales=(*scales, *resumption.still_waiting(weights)),
        plans=host.current().memory.known(),
        has_optimizer=skipping.have_applied(),
    )


def put_back(
    record: Record,
    path: str,
    weights: Callable[[], Handles | None],
    session: Any = None,
) -> list[Any]:
    """Let the training of some weights go on from a record, now or once it begins.

    Args:
      record: an empty one changes nothing, but that a loss scale that starts fresh says
        so.
      path: of the checkpoint, for messages.
      weights: returns what was restored with the record.
      session: for a training in a `tf.Graph`.

    Returns:
      What is still to be run in a Session, where none was given.

    Raises:
      CheckpointMismatchError: the record is that of another loss scale.
    """
    host.current().memory.resume(record.plans)
    restored = resumption.wait(record.loss_scales, path, weights)
    if not record.loss_scales:
        return []
    now = weights() or {}
    concerned = [s for s in states_here() if not s.weights or s.has_trained(now)]
    operations: list[Any] = []
    for state, values in resumption.shared_out(restored, concerned, latest_state()):
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
