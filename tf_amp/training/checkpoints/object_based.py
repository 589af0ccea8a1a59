"""The record in what `tf.train.Checkpoint` and its like write.

It is one string more in the file, under a key that no object asks for: the file loads
without tf-amp, and `assert_consumed` holds with it and without. It goes with
checkpoints of an optimizer, or of anything where weights are updated by hand.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import acting_after, wrapping
from tf_amp._tensorflow_private import checkpoints as private
from tf_amp._tensorflow_private.tracing import kept_with
from tf_amp.errors import UnreadableRecordError
from tf_amp.message_codes import Code
from tf_amp.tracing.bypass import holding
from tf_amp.training.checkpoints import snapshot
from tf_amp.training.checkpoints.record import (
    Record,
    records_from_text,
    text_from_records,
)
from tf_amp.training.loss_scale.weights import Handles, RestoredWeights, weights_among
from tf_amp.training.optimizers import skipping

KEY = "_TF_AMP_RECORD"

# In a `tf.Graph` the string is fed, since what saves it is made once only.
_FED = "_tf_amp_record"
_session: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "tf_amp_session", default=None
)


@wrapping
def _save(
    save: Callable[..., Any],
    saver: Any,
    file_prefix: Any,
    checkpoint_number: Any = None,
    session: Any = None,
    options: Any = None,
) -> Any:
    """Do what `TrackableSaver.save` does, and know the Session it is called with."""
    with holding(_session, session):
        return save(saver, file_prefix, checkpoint_number, session, options)


def _add_record(gathered: Any, saver: Any, *args: Any, **kwargs: Any) -> None:
    """Add our string to the tensors of a checkpoint."""
    tensors, feeds = gathered[:2]
    is_of_training = _reaches_optimizer(saver) or not skipping.have_applied()
    if not is_of_training:
        return
    if tf.executing_eagerly():
        record = snapshot.take(_weights_of(saver))
        if not record.is_empty:
            with tf.device("/cpu:0"):
                text = tf.constant(text_from_records([record]))
            tensors.setdefault(None, {})[KEY] = text
    elif not tf.compat.v1.get_default_graph().building_function:
        fed = _fed_tensor(saver)
        tensors.setdefault(None, {})[KEY] = fed
        session = _session.get() or private.session_for_saving()
        record = snapshot.take(_weights_of(saver), session)
        feeds[fed] = text_from_records([record])


def _put_back(status: Any, saver: Any, save_path: Any, options: Any = None) -> None:
    """Restore loss scales and plans too."""
    if save_path is None:
        return
    path = str(save_path)
    record = _record_in(path)
    if not _reaches_optimizer(saver) and (record is None or record.has_optimizer):
        return
    weights = RestoredWeights(private.trackables_of(saver))
    restore_ops = snapshot.put_back(record or Record(), path, weights)
    if restore_ops:
        private.add_restore_ops(status, restore_ops)


def _record_in(path: str) -> Record | None:
    """Return what a checkpoint holds of ours, if it does."""
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(KEY):
        return None
    try:
        return next(iter(records_from_text(reader.get_tensor(KEY).decode())), None)
    except (UnreadableRecordError, UnicodeDecodeError) as error:
        Code.RECORD_IS_UNUSABLE.warn(
            "The state of tf-amp in %s cannot be read: %s", path, error
        )
        return None


def _reaches_optimizer(saver: Any) -> bool:
    classes = private.optimizer_classes()
    return any(isinstance(one, classes) for one in private.trackables_of(saver))


def _weights_of(saver: Any) -> Handles:
    return weights_among(private.trackables_of(saver))


def _fed_tensor(saver: Any) -> Any:
    """Return the string that one saver is fed with, in its graph."""

    def make() -> Any:
        with tf.device("/cpu:0"):
            return tf.constant(text_from_records(()))

    return kept_with(saver, _FED, make)


HOOKS = {
    private.SAVE_OBJECTS: _save,
    private.GATHER_TENSORS: acting_after(_add_record),
    private.RESTORE_OBJECTS: acting_after(_put_back),
}
