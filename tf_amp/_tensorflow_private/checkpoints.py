"""The private hooks of what saves and restores."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import hooks, training, unless_gone

_NOT_KEPT = "the loss scale is not kept in checkpoints"
_CHECKPOINT = "tensorflow.python.checkpoint.checkpoint"
_SAVER = "tensorflow.python.training.saver"

GATHER_TENSORS, SAVE_OBJECTS, RESTORE_OBJECTS, BULK_RESTORE = hooks(
    _NOT_KEPT,
    f"{_CHECKPOINT}:TrackableSaver._gather_serialized_tensors",
    f"{_CHECKPOINT}:TrackableSaver.save",
    f"{_CHECKPOINT}:TrackableSaver.restore",
    f"{_SAVER}:BulkSaverBuilder.bulk_restore",
)
(SAVE_NAMES,) = hooks("plans are not kept beside checkpoints", f"{_SAVER}:Saver.save")
(RESTORE_NAMES,) = hooks(
    "checkpoints without a loss scale cannot be restored", f"{_SAVER}:Saver.restore"
)
(RESTORE_OBJECTS_BY_NAMES,) = hooks(
    "a Saver cannot restore what a tf.train.Checkpoint has written",
    f"{_SAVER}:saver_from_object_based_checkpoint",
)
(REMOVE_CHECKPOINT,) = hooks(
    "plans stay when the checkpoint beside them is removed",
    "tensorflow.python.checkpoint.checkpoint_management:remove_checkpoint",
)
(REPORT_UNINITIALIZED,) = hooks(
    "a MonitoredSession waits for the loss scale to be initialized",
    "tensorflow.python.ops.variables:report_uninitialized_variables",
)

_BESIDE = "the loss scale is not kept beside the files that Keras saves"
_TF_KERAS = "tf_keras.src.saving"
SAVE_KERAS = hooks(
    _BESIDE,
    "keras.src.saving.saving_lib:save_model",
    "keras.src.saving.saving_lib:save_weights_only",
    "keras.src.legacy.saving.legacy_h5_format:save_model_to_hdf5",
    f"{_TF_KERAS}.saving_lib:save_model",
    f"{_TF_KERAS}.saving_lib:save_weights_only",
    f"{_TF_KERAS}.legacy.hdf5_format:save_model_to_hdf5",
    f"{_TF_KERAS}.legacy.saved_model.save:save",
)
LOAD_KERAS_WEIGHTS = hooks(
    _BESIDE,
    "keras.src.saving.saving_lib:load_weights_only",
    f"{_TF_KERAS}.saving_lib:load_weights_only",
)
LOAD_KERAS_MODEL = hooks(
    _BESIDE,
    "keras.src.saving.saving_lib:load_model",
    "keras.src.legacy.saving.legacy_h5_format:load_model_from_hdf5",
    f"{_TF_KERAS}.saving_lib:load_model",
    f"{_TF_KERAS}.legacy.hdf5_format:load_model_from_hdf5",
    f"{_TF_KERAS}.legacy.saved_model.load:load",
)

_APPLYING = (
    training.KERAS_APPLY,
    training.TF_KERAS_APPLY,
    training.TF_KERAS_LEGACY_APPLY,
    training.INNER_KERAS_APPLY,
    training.V1_APPLY,
)


def optimizer_classes() -> tuple[type, ...]:
    """Return the base classes of all optimizers that are loaded."""
    modules = ((sys.modules.get(hook.module), hook.owner) for hook in _APPLYING)
    found = (getattr(module, owner, None) for module, owner in modules if module)
    return tuple(cls for cls in found if cls is not None)


@unless_gone("TrackableSaver._graph_view", _NOT_KEPT, ())
def trackables_of(saver: Any) -> Sequence[Any]:
    """Return all objects that a TrackableSaver saves."""
    found: Sequence[Any] = saver._graph_view.descendants()
    return found


def session_for_saving() -> Any:
    """Return the Session that a checkpoint would be saved in; None without any."""
    try:
        return importlib.import_module(_CHECKPOINT).get_session()
    except (ImportError, AttributeError):
        return tf.compat.v1.get_default_session()


@unless_gone("CheckpointLoadStatus._checkpoint", _NOT_KEPT, None)
def add_restore_ops(status: Any, operations: Sequence[Any]) -> None:
    """Have what a load status runs in a Session do some more."""
    status._checkpoint.restore_ops.extend(operations)
