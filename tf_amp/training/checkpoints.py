"""The loss scale and the plans in every kind of checkpoint.

`checkpoint_record` says what is kept. Here it is put into, or beside, what TensorFlow
and Keras write, by wrapping their functions: nothing of the user's changes.

- `tf.train.Checkpoint` and its like: one string more in the file, under a key that no
  object asks for. The file loads without tf-amp, and `assert_consumed` holds with it
  and without. It goes with checkpoints of an optimizer, or of anything where weights
  are updated by hand.
- Keras' files: a small file beside each. It goes with models that have an optimizer.
- `tf.compat.v1.train.Saver`: the state is among the global variables, so a Saver saves
  it by itself. A checkpoint that lacks it restores all the same, and no program waits
  for it to be initialized, which it need not be. The plans are kept in a file beside.
"""

from __future__ import annotations

import contextvars
import dataclasses
import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_amp._tensorflow_private import (
    acting_after,
    acting_before,
    install_when_imported,
    wrapping,
)
from tf_amp._tensorflow_private import checkpoints as private
from tf_amp._tensorflow_private import install as install_hook
from tf_amp._tensorflow_private.tracing import (
    attribute_of,
    kept_with,
    operations_behind,
    put_attribute,
)
from tf_amp.errors import UnreadableRecordError
from tf_amp.message_codes import Code
from tf_amp.rewriting import host
from tf_amp.tracing.bypass import holding
from tf_amp.training import checkpoint_record, optimizers
from tf_amp.training.checkpoint_record import (
    Record,
    records_from_text,
    text_from_records,
)
from tf_amp.training.restored_scales import (
    SavedScale,
    given,
    is_usable,
    kind_of,
    mismatch,
    say_fresh,
)
from tf_amp.training.scale_state import PREFIX, ScaleState
from tf_amp.training.states import states_of
from tf_amp.training.weights import Handles, RestoredWeights, handles_of, weights_among


def install() -> None:
    """Wrap what TensorFlow saves and restores with, and each Keras once it is there."""
    for hook, wrap in {**_OF_OBJECTS, **_OF_NAMES}.items():
        install_hook(hook, wrap)
    for hook, wrap in _OF_KERAS.items():
        install_when_imported(hook, wrap)


KEY = "_TF_AMP_RECORD"

# In a `tf.Graph` the string is fed, since what saves it is made once only.
_FED = "_tf_amp_record"
_session: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "tf_amp_session", default=None
)


@wrapping
def _save_objects(
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
    is_of_training = _reaches_optimizer(saver) or not optimizers.have_applied()
    if not is_of_training:
        return
    if tf.executing_eagerly():
        record = checkpoint_record.take_record(_weights_of(saver))
        if not record.is_empty:
            with tf.device("/cpu:0"):
                text = tf.constant(text_from_records([record]))
            tensors.setdefault(None, {})[KEY] = text
    elif not tf.compat.v1.get_default_graph().building_function:
        fed = _fed_tensor(saver)
        tensors.setdefault(None, {})[KEY] = fed
        session = _session.get() or private.session_for_saving()
        record = checkpoint_record.take_record(_weights_of(saver), session)
        feeds[fed] = text_from_records([record])


def _put_back_objects(
    status: Any, saver: Any, save_path: Any, options: Any = None
) -> None:
    """Restore loss scales and plans too."""
    if save_path is None:
        return
    path = str(save_path)
    record = _record_in(path)
    if not _reaches_optimizer(saver) and (record is None or record.has_optimizer):
        return
    weights = RestoredWeights(private.trackables_of(saver))
    restore_ops = checkpoint_record.put_record_back(record or Record(), path, weights)
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


_OF_OBJECTS = {
    private.SAVE_OBJECTS: _save_objects,
    private.GATHER_TENSORS: acting_after(_add_record),
    private.RESTORE_OBJECTS: acting_after(_put_back_objects),
}


# The smallest variables, up to so many bytes, distinguish weights: they are the biases
# and scales of norms, which change in every step.
_KEY_BYTES = 2**16


def key_of(model: Any) -> str:
    """Return what distinguishes the weights and the step of a model from others."""
    made = hashlib.blake2b(str(_steps_of(model)).encode(), digest_size=16)
    for value in _smallest(model.trainable_variables):
        made.update(np.ascontiguousarray(value).tobytes())
    return made.hexdigest()


def _keep_keras(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Write a record beside the file that a model is about to be saved in."""
    path = _path_of(filepath)
    if _optimizer_of(model) is not None and path is not None:
        record = checkpoint_record.take_record(
            handles_of(model.trainable_variables), _session_of_variables()
        )
        checkpoint_record.write_beside(
            path, dataclasses.replace(record, step=key_of(model))
        )


def _put_back_keras(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Go on from the record of the weights that were loaded.

    Weights without the steps that led to them begin a training: nothing to be said.
    """
    path = _path_of(filepath)
    if path is None or _optimizer_of(model) is None:
        return
    records = checkpoint_record.read_beside(path)
    key = key_of(model)
    record = next((one for one in records if one.step == key), None)
    if record is None and not _steps_of(model):
        return
    if record is None and records:
        Code.RECORD_IS_UNUSABLE.warn(
            "%s belongs to other weights, and is not used.",
            checkpoint_record.path_beside(path),
        )
    weights = RestoredWeights([model, *model.trainable_variables])
    checkpoint_record.put_record_back(
        record or Record(), path, weights, _session_of_variables()
    )


def _session_of_variables() -> Any | None:
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
    session = _session_of_variables()
    return np.asarray(variable.numpy() if session is None else session.run(variable))


def _path_of(file: Any) -> str | None:
    """Return the path of a file, which may be open; None where it has none."""
    if isinstance(file, (io.IOBase, tf.io.gfile.GFile)):
        file = getattr(file, "name", None)
    return os.fspath(file) if isinstance(file, (str, os.PathLike)) else None


_OF_KERAS = {
    **dict.fromkeys(private.SAVE_KERAS, acting_before(_keep_keras)),
    **dict.fromkeys(
        private.LOAD_KERAS_WEIGHTS,
        acting_after(lambda result, *args, **kwargs: _put_back_keras(*args, **kwargs)),
    ),
    **dict.fromkeys(private.LOAD_KERAS_MODEL, acting_after(_put_back_keras)),
}


_OURS = f"{PREFIX}/"
# On the operation that restores nothing but loss scales.
_MARK = "_tf_amp_restores"


@wrapping
def _restore_in_bulk(
    bulk_restore: Callable[..., Any],
    builder: Any,
    filename: Any,
    saveables: Sequence[Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Make the operation that restores, with one more for our variables.

    Fed, it does not run, and the others are restored without it.
    """

    def restore(some: Sequence[Any]) -> list[Any]:
        return bulk_restore(builder, filename, some, *args, **kwargs) if some else []

    ours = [saveable for saveable in saveables if _is_ours(saveable.name)]
    if not ours or tf.executing_eagerly():
        return bulk_restore(builder, filename, saveables, *args, **kwargs)
    theirs = iter(restore([s for s in saveables if not _is_ours(s.name)]))
    restored = restore(ours)
    put_attribute(restored[0].op, _MARK, b=True)
    own = iter(restored)
    return [
        next(own if _is_ours(saveable.name) else theirs)
        for saveable in saveables
        for _ in saveable.specs
    ]


@wrapping
def _restore_names(
    restore: Callable[..., Any], saver: Any, sess: Any, save_path: Any
) -> None:
    """Do what `Saver.restore` does; a checkpoint need not hold our variables."""
    shapes = None if tf.executing_eagerly() else _shapes_in(save_path)
    if sess is None or shapes is None:
        restore(saver, sess, save_path)
        return
    path = tf.compat.as_text(save_path)
    host.current().memory.resume(
        next(iter(checkpoint_record.read_beside(path)), Record()).plans
    )
    shapes = _usable(sess.graph, shapes, path)
    fresh = _missing(sess.graph, saver, shapes, path)
    restore(saver, _Feeding(sess, fresh) if fresh else sess, save_path)
    _complete(states_of(sess.graph), sess, set(shapes))


@wrapping
def _make_saver(
    make_saver: Callable[..., Any],
    checkpoint_path: Any,
    var_list: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Make a Saver for object-based files, which lack our variables."""
    if isinstance(var_list, (list, tuple)):
        var_list = _theirs(var_list)
    return make_saver(checkpoint_path, var_list, *args, **kwargs)


@wrapping
def _save_names(
    save: Callable[..., Any], saver: Any, sess: Any, *args: Any, **kwargs: Any
) -> Any:
    """Do what `Saver.save` does; it needs no initialized state, and keeps the plans."""
    if not tf.executing_eagerly() and sess is not None:
        for state in states_of(sess.graph):
            state.initialize_missing(sess)
    path = save(saver, sess, *args, **kwargs)
    if path:
        checkpoint_record.write_beside(
            path, Record(plans=host.current().memory.known())
        )
    return path


@wrapping
def _report_uninitialized(
    report: Callable[..., Any], var_list: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """List uninitialized variables, without ours: they may be so."""
    if var_list is None:
        v1 = tf.compat.v1
        var_list = [*v1.global_variables(), *v1.local_variables()]
    return report(_theirs(var_list), *args, **kwargs)


def _theirs(variables: Sequence[Any]) -> list[Any]:
    return [variable for variable in variables if not _is_ours(variable.name)]


def _usable(
    graph: Any, shapes: Mapping[str, Sequence[int]], path: str
) -> Mapping[str, Sequence[int]]:
    """Return what a checkpoint holds, without states whose scale is of no use."""
    reader = tf.train.load_checkpoint(path)
    held = {name: reader.get_tensor(name) for name in shapes if _is_ours(name)}
    for state in states_of(graph):
        scale = state.scale_among(held)
        if scale is None or is_usable(scale):
            continue
        Code.RECORD_IS_UNUSABLE.warn(
            "A loss scale in the checkpoint %s is %g, and is not used.",
            path,
            scale,
        )
        own = state.fresh_by_name()
        shapes = {name: shape for name, shape in shapes.items() if name not in own}
    return shapes


def _missing(
    graph: Any, saver: Any, shapes: Mapping[str, Sequence[int]], path: str
) -> dict[Any, Any]:
    """Return what to feed for our variables if a checkpoint lacks them."""
    wanted = dict(_restored_tensors(graph, saver))
    if all(name in shapes for name in wanted):
        return {}
    fresh: dict[Any, Any] = {}
    for state in states_of(graph):
        _refuse_others(state, shapes, path)
        values = state.fresh_by_name()
        if any(name in wanted and name not in shapes for name in values):
            say_fresh(state.loss_scale, state.fresh, path)
        fresh |= {wanted[name]: v for name, v in values.items() if name in wanted}
    return fresh if len(fresh) == len(wanted) else {}


def _refuse_others(
    state: ScaleState, shapes: Mapping[str, Sequence[int]], path: str
) -> None:
    found = [name for name in shapes if name.startswith(_OURS)]
    kinds = {name.split("/")[1] for name in found}
    if kinds and kind_of(state.loss_scale) not in kinds:
        saved = SavedScale(min(kinds), "", {})
        raise mismatch(path, saved, state.loss_scale)


def _complete(states: Sequence[ScaleState], session: Any, names: set[str]) -> None:
    """Let what the program has chosen go before what was restored."""
    for state in states:
        chosen = given(state.loss_scale)
        if chosen and not names.isdisjoint(state.fresh_by_name()):
            state.replace({**state.evaluate(session), **chosen}, session)


def _restored_tensors(graph: Any, saver: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of our variables as a Saver restores them."""
    restoring = graph.get_operation_by_name(saver.saver_def.restore_op_name)
    for operation in operations_behind(restoring):
        if operation.type == "RestoreV2" and attribute_of(operation, _MARK):
            names = map(tf.compat.as_text, tf.get_static_value(operation.inputs[1]))
            yield from zip(names, operation.outputs, strict=True)


def _shapes_in(path: Any) -> Mapping[str, Sequence[int]] | None:
    """Return what a checkpoint holds; None where it cannot be read."""
    try:
        reader = tf.train.load_checkpoint(path)
        shapes: Mapping[str, Sequence[int]] = reader.get_variable_to_shape_map()
        return shapes
    except (ValueError, TypeError, tf.errors.OpError):
        return None


class _Feeding:
    """A Session that feeds some tensors in every run."""

    def __init__(self, session: Any, feeds: Mapping[Any, Any]) -> None:
        self._session = session
        self._feeds = feeds

    @property
    def graph(self) -> Any:
        return self._session.graph

    def run(self, fetches: Any, feed_dict: Any = None, **kwargs: Any) -> Any:
        feeds = {**self._feeds, **(feed_dict or {})}
        return self._session.run(fetches, feeds, **kwargs)


def _is_ours(name: str) -> bool:
    return name.startswith(_OURS)


_OF_NAMES = {
    private.BULK_RESTORE: _restore_in_bulk,
    private.SAVE_NAMES: _save_names,
    private.RESTORE_NAMES: _restore_names,
    private.RESTORE_OBJECTS_BY_NAMES: _make_saver,
    private.REMOVE_CHECKPOINT: acting_after(
        lambda result, checkpoint_prefix, *_, **__: checkpoint_record.remove_beside(
            checkpoint_prefix
        )
    ),
    private.REPORT_UNINITIALIZED: _report_uninitialized,
}
