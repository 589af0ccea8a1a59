"""The loss scale and the plans in every kind of checkpoint.

`checkpoint_record` says what is kept. Here it is put into, or beside, what TensorFlow
and Keras write, by wrapping their functions: nothing of the user's changes.

- `tf.train.Checkpoint` and its like: one string more in the file, under a key that no
  object asks for. The file loads without tf-amp, and `assert_consumed` holds with it
  and without, which an object of ours in the checkpoint would break. It goes with
  checkpoints of an optimizer, or of anything where weights are updated by hand.
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
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from grappler_pass.graph.walks import reached
from tf_amp._tensorflow_private import (
    acting_after,
    acting_before,
    wrapping,
)
from tf_amp._tensorflow_private import graphs as private
from tf_amp._tensorflow_private import install as install_hooks
from tf_amp._tensorflow_private.tracing import (
    attribute_of,
    kept_with,
    operations_behind,
    put_attribute,
)
from tf_amp._tensorflow_private.training import optimizer_classes
from tf_amp.errors import UnreadableRecordError
from tf_amp.message_codes import Code
from tf_amp.rewriting import host
from tf_amp.tracing.stack import holding
from tf_amp.training import checkpoint_record, optimizers
from tf_amp.training.checkpoint_record import (
    Handles,
    Record,
    SavedScale,
    Values,
    chosen_values,
    is_usable,
    kind_of,
    mismatch,
    records_from_text,
    saved_scale,
    say_fresh,
    text_from_records,
)
from tf_amp.training.scale_state import (
    PREFIX,
    ScaleState,
    handles_of,
    latest_state,
    states_here,
    states_of,
)


def install() -> None:
    """Wrap what TensorFlow saves and restores with, and each Keras once it is there."""
    install_hooks({**_OF_OBJECTS, **_OF_NAMES, **_OF_KERAS})


def take_record(weights: Handles, session: Any = None) -> Record:
    """Return the record of this training as it is now.

    Args:
      weights: that are saved with it.
      session: for a training in a `tf.Graph`.
    """
    states, latest = states_here(), latest_state()
    # One state of each loss scale: of several, under strategies, the latest.
    in_use = {id(state.loss_scale): state for state in states}
    in_use |= {id(state.loss_scale): state for state in states if state is latest}
    # Weights that were never trained, such as an average of others, go with all.
    own = [state for state in in_use.values() if state.has_trained(weights)]
    scales = (
        saved_scale(state.loss_scale, state.evaluate(session))
        for state in own or in_use.values()
    )
    return Record(
        loss_scales=(*scales, *checkpoint_record.still_waiting(weights)),
        plans=host.current().memory.known(),
        has_optimizer=optimizers.have_applied(),
    )


def put_record_back(
    record: Record | None, path: str, restored: Iterable[Any], session: Any = None
) -> list[Any]:
    """Let the training of some weights go on from a record, now or once it begins.

    Args:
      record: None changes nothing, but that a loss scale that starts fresh says so.
      path: of the checkpoint, for messages.
      restored: the objects that were restored with it, weights among them or made by
        them later; none of it is kept alive.
      session: for a training in a `tf.Graph`.

    Returns:
      What is still to be run in a Session, where none was given.

    Raises:
      CheckpointMismatchError: the record is that of another loss scale.
    """
    references = [weakref.ref(one) for one in restored]

    def weights() -> Handles | None:
        """Return those that there are by now; None once all of it is gone."""
        objects = [reference() for reference in references]
        alive = [one for one in objects if one is not None]
        children_of = tf.train.TrackableView.children
        parts = reached(alive, lambda one: children_of(one).values(), key=id)
        return _weights_among(parts) if alive else None

    kept = record or Record()
    host.current().memory.resume(kept.plans)
    waiting = checkpoint_record.wait(kept.loss_scales, path, weights)
    if not kept.loss_scales:
        return []
    now = weights() or {}
    concerned = [s for s in states_here() if not s.weights or s.has_trained(now)]
    operations: list[Any] = []
    for state, values in checkpoint_record.shared_out(
        waiting, concerned, latest_state()
    ):
        if state.in_graph and session is None:
            operations += state.write(values, values)
        else:
            state.replace(values, session)
    return operations


def _weights_among(trackables: Iterable[Any]) -> Handles:
    return handles_of(one for one in trackables if getattr(one, "trainable", False))


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
    """Add our string to the tensors of a checkpoint, where it is one of a training."""
    tensors, feeds = gathered[:2]
    trackables = private.trackables_of(saver)
    if optimizers.have_applied() and not _holds_optimizer(trackables):
        return

    def constant(*records: Record) -> Any:
        with tf.device("/cpu:0"):
            return tf.constant(text_from_records(records))

    weights = _weights_among(trackables)
    if tf.executing_eagerly():
        record = take_record(weights)
        if not record.is_empty:
            tensors.setdefault(None, {})[KEY] = constant(record)
    elif not tf.compat.v1.get_default_graph().building_function:
        fed = kept_with(saver, _FED, constant)
        tensors.setdefault(None, {})[KEY] = fed
        session = _session.get() or private.session_for_saving()
        feeds[fed] = text_from_records([take_record(weights, session)])


def _put_back_objects(
    status: Any, saver: Any, save_path: Any, options: Any = None
) -> None:
    """Restore loss scales and plans too."""
    if save_path is None:
        return
    path, record = str(save_path), None
    reader = _reader_of(path)
    if reader.has_tensor(KEY):
        try:
            records = records_from_text(reader.get_tensor(KEY).decode())
            record = next(iter(records), None)
        except (UnreadableRecordError, UnicodeDecodeError) as error:
            Code.RECORD_IS_UNUSABLE.warn(
                "The state of tf-amp in %s cannot be read: %s", path, error
            )
    trackables = private.trackables_of(saver)
    is_by_hand = record is not None and not record.has_optimizer
    if is_by_hand or _holds_optimizer(trackables):
        restore_ops = put_record_back(record, path, trackables)
        if restore_ops:
            private.add_restore_ops(status, restore_ops)


def _reader_of(path: Any) -> Any:
    """Return a reader of a checkpoint, which may stand beside a folder of its name."""
    # `tf.train.load_checkpoint` looks into the folder.
    return tf.compat.v1.train.NewCheckpointReader(path)


def _holds_optimizer(trackables: Iterable[Any]) -> bool:
    classes = optimizer_classes()
    return any(isinstance(one, classes) for one in trackables)


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
    digest = hashlib.blake2b(str(_steps_of(model)).encode(), digest_size=16)
    size = 0
    for variable in sorted(model.trainable_variables, key=lambda v: np.prod(v.shape)):
        value = _value_of(variable)
        if size and size + value.nbytes > _KEY_BYTES:
            break
        size += value.nbytes
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _keep_keras(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Write a record beside the file that a model is about to be saved in."""
    path = _path_of(filepath)
    if path is not None and getattr(model, "optimizer", None) is not None:
        weights = handles_of(model.trainable_variables)
        record = take_record(weights, _session_of_variables())
        record = dataclasses.replace(record, step=key_of(model))
        checkpoint_record.write_beside(path, record)


def _put_back_keras(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
    """Go on from the record of the weights that were loaded.

    Weights without the steps that led to them begin a training: nothing to be said.
    """
    path = _path_of(filepath)
    if path is None or getattr(model, "optimizer", None) is None:
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
    restored = [model, *model.trainable_variables]
    put_record_back(record, path, restored, _session_of_variables())


def _session_of_variables() -> Any | None:
    """Return what variables are in; None under eager execution."""
    return None if tf.executing_eagerly() else private.session_for_saving()


def _steps_of(model: Any) -> int:
    """Return how often the optimizer of a model, if any, has been applied."""
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    return 0 if iterations is None else int(_value_of(iterations))


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
    try:
        is_eager = tf.executing_eagerly() or sess is None
        reader = None if is_eager else _reader_of(save_path)
    except (ValueError, TypeError, tf.errors.OpError):
        reader = None
    if reader is None:
        restore(saver, sess, save_path)
        return
    path = tf.compat.as_text(save_path)
    record = next(iter(checkpoint_record.read_beside(path)), Record())
    host.current().memory.resume(record.plans)
    # Names and values of our variables as this Saver restores them.
    restored: dict[str, Any] = {}
    for op in operations_behind(
        sess.graph.get_operation_by_name(saver.saver_def.restore_op_name)
    ):
        if op.type == "RestoreV2" and attribute_of(op, _MARK):
            names = map(tf.compat.as_text, tf.get_static_value(op.inputs[1]))
            restored.update(zip(names, op.outputs, strict=True))
    feeds: dict[Any, Any] = {}
    for state in states_of(sess.graph):
        if not restored.keys().isdisjoint(state.packed_by_name(state.fresh)):
            values = _saved_values(state, reader, path) or state.fresh
            packed = state.packed_by_name({**values, **chosen_values(state.loss_scale)})
            feeds |= {restored[n]: v for n, v in packed.items() if n in restored}
    restore(saver, _Feeding(sess, feeds) if feeds else sess, save_path)


def _saved_values(state: ScaleState, reader: Any, path: str) -> Values | None:
    """Return what a checkpoint holds of a state; None where it starts fresh.

    Raises:
      CheckpointMismatchError: the checkpoint holds the state of another loss scale.
    """
    fresh = state.packed_by_name(state.fresh)
    shapes = reader.get_variable_to_shape_map()
    if all(shapes.get(name) == [*vector.shape] for name, vector in fresh.items()):
        kinds = zip(state.variables_by_kind, fresh, strict=True)
        values = state.values_in({kind: reader.get_tensor(n) for kind, n in kinds})
        if is_usable(values["scale"]):
            return values
        Code.RECORD_IS_UNUSABLE.warn(
            "A loss scale in the checkpoint %s is %g, and is not used.",
            path,
            values["scale"],
        )
    others = [name for name in shapes if _is_ours(name) and name not in fresh]
    saved = {name.split("/")[1] for name in others}
    if saved and kind_of(state.loss_scale) not in saved:
        raise mismatch(path, SavedScale(min(saved), "", {}), state.loss_scale)
    say_fresh(state.loss_scale, state.fresh, path)
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
        plans = host.current().memory.known()
        checkpoint_record.write_beside(path, Record(plans=plans))
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
