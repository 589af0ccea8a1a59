"""Loss scales and plans beside the files that Keras writes.

The files themselves hold what Keras puts there, float32 weights and optimizer state;
the record is in a small file beside each (`side_file`). It goes with models that have
an optimizer.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp._tensorflow_private import acting_after, acting_before
from tf_amp._tensorflow_private import checkpoints as private
from tf_amp.message_codes import Code
from tf_amp.training.checkpoints import side_file, snapshot
from tf_amp.training.checkpoints.record import Record
from tf_amp.training.loss_scale.weights import RestoredWeights, handles_of

# The smallest variables, up to so many bytes, distinguish weights: they are the biases
# and scales of norms, which change in every step.
_KEY_BYTES = 2**16


def key_of(model: Any) -> str:
    """Return what distinguishes the weights and the step of a model from others."""
    made = hashlib.blake2b(str(_steps_of(model)).encode(), digest_size=16)
    for value in _smallest(model.trainable_variables):
        made.update(np.ascontiguousarray(value).tobytes())
    return made.hexdigest()


def _keep(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Write a record beside the file that a model is about to be saved in."""
    path = _path_of(filepath)
    if _optimizer_of(model) is not None and path is not None:
        record = snapshot.take(handles_of(model.trainable_variables), _session())
        side_file.write(path, dataclasses.replace(record, step=key_of(model)))


def _put_back(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Go on from the record of the weights that were loaded.

    Weights without the steps that led to them begin a training: nothing to be said.
    """
    path = _path_of(filepath)
    if path is None or _optimizer_of(model) is None:
        return
    records = side_file.read(path)
    key = key_of(model)
    record = next((one for one in records if one.step == key), None)
    if record is None and not _steps_of(model):
        return
    if record is None and records:
        Code.RECORD_IS_UNUSABLE.warn(
            "%s belongs to other weights, and is not used.",
            side_file.path_beside(path),
        )
    weights = RestoredWeights([model, *model.trainable_variables])
    snapshot.put_back(record or Record(), path, weights, _session())


def _session() -> Any | None:
    """Return what variables are in; None under eager execution."""
    return None if tf.executing_eagerly() else private.session_for_saving()


def _optimizer_of(model: Any) -> Any | None:
    return getattr(model, "optimizer", None)


def _steps_of(model: Any) -> int:
    iterations = getattr(_optimizer_of(model), "iterations", None)
    return 0 if iterations is None else int(_value_of(iterations))


def _smallest(variables: Sequence[Any]) -> list[Any]:
    values: list[Any] = []
    size = 0
    for variable in sorted(variables, key=lambda v: int(np.prod(v.shape))):
        value = _value_of(variable)
        size += value.nbytes
        if values and size > _KEY_BYTES:
            break
        values.append(value)
    return values


def _value_of(variable: Any) -> Any:
    """Return the value of a variable, of several replicas that of the first."""
    session = _session()
    return np.asarray(variable.numpy() if session is None else session.run(variable))


def _path_of(file: Any) -> str | None:
    """Return the path of a file, which may be open; None where it has none."""
    if isinstance(file, (io.IOBase, tf.io.gfile.GFile)):
        file = getattr(file, "name", None)
    return os.fspath(file) if isinstance(file, (str, os.PathLike)) else None


HOOKS = {
    **dict.fromkeys(private.SAVE_KERAS, acting_before(_keep)),
    **dict.fromkeys(
        private.LOAD_KERAS_WEIGHTS,
        acting_after(lambda result, *args, **kwargs: _put_back(*args, **kwargs)),
    ),
    **dict.fromkeys(private.LOAD_KERAS_MODEL, acting_after(_put_back)),
}
