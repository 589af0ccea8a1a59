"""The private hooks of what saves and restores."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import Hook, training, unless_gone

_NOT_KEPT = "the loss scale is not kept in checkpoints"
_CHECKPOINT = "tensorflow.python.checkpoint.checkpoint"
_SAVER = "tensorflow.python.training.saver"

GATHER_TENSORS = Hook(
    f"{_CHECKPOINT}:TrackableSaver._gather_serialized_tensors", _NOT_KEPT
)
SAVE_OBJECTS = Hook(f"{_CHECKPOINT}:TrackableSaver.save", _NOT_KEPT)
RESTORE_OBJECTS = Hook(f"{_CHECKPOINT}:TrackableSaver.restore", _NOT_KEPT)
BULK_RESTORE = Hook(f"{_SAVER}:BulkSaverBuilder.bulk_restore", _NOT_KEPT)
SAVE_NAMES = Hook(f"{_SAVER}:Saver.save", "plans are not kept beside checkpoints")
RESTORE_NAMES = Hook(
    f"{_SAVER}:Saver.restore", "checkpoints without a loss scale cannot be restored"
)
RESTORE_OBJECTS_BY_NAMES = Hook(
    f"{_SAVER}:saver_from_object_based_checkpoint",
    "a Saver cannot restore what a tf.train.Checkpoint has written",
)
REMOVE_CHECKPOINT = Hook(
    "tensorflow.python.checkpoint.checkpoint_management:remove_checkpoint",
    "plans stay when the checkpoint beside them is removed",
)
REPORT_UNINITIALIZED = Hook(
    "tensorflow.python.ops.variables:report_uninitialized_variables",
    "a MonitoredSession waits for the loss scale to be initialized",
)

_BESIDE = "the loss scale is not kept beside the files that Keras saves"
_KERAS = "keras.src.saving.saving_lib"
_KERAS_H5 = "keras.src.legacy.saving.legacy_h5_format"
_TF_KERAS = "tf_keras.src.saving.saving_lib"
_TF_KERAS_H5 = "tf_keras.src.saving.legacy.hdf5_format"
_TF_KERAS_FOLDER = "tf_keras.src.saving.legacy.saved_model"
SAVE_KERAS = (
    Hook(f"{_KERAS}:save_model", _BESIDE),
    Hook(f"{_KERAS}:save_weights_only", _BESIDE),
    Hook(f"{_KERAS_H5}:save_model_to_hdf5", _BESIDE),
    Hook(f"{_TF_KERAS}:save_model", _BESIDE),
    Hook(f"{_TF_KERAS}:save_weights_only", _BESIDE),
    Hook(f"{_TF_KERAS_H5}:save_model_to_hdf5", _BESIDE),
    Hook(f"{_TF_KERAS_FOLDER}.save:save", _BESIDE),
)
LOAD_KERAS_WEIGHTS = (
    Hook(f"{_KERAS}:load_weights_only", _BESIDE),
    Hook(f"{_TF_KERAS}:load_weights_only", _BESIDE),
)
LOAD_KERAS_MODEL = (
    Hook(f"{_KERAS}:load_model", _BESIDE),
    Hook(f"{_KERAS_H5}:load_model_from_hdf5", _BESIDE),
    Hook(f"{_TF_KERAS}:load_model", _BESIDE),
    Hook(f"{_TF_KERAS_H5}:load_model_from_hdf5", _BESIDE),
    Hook(f"{_TF_KERAS_FOLDER}.load:load", _BESIDE),
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
