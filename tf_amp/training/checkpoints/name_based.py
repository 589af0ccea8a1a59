"""Loss scales in what a `tf.compat.v1.train.Saver` writes.

The state is among the global variables, so a Saver saves it by itself. What is done
here: a checkpoint that lacks it restores all the same, and no program waits for it to
be initialized, which it need not be. The plans are kept in a file beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import acting_after, wrapping
from tf_amp._tensorflow_private import checkpoints as private
from tf_amp._tensorflow_private.tracing import (
    attribute_of,
    operations_behind,
    put_attribute,
)
from tf_amp.message_codes import Code
from tf_amp.rewriting import host
from tf_amp.training.checkpoints import side_file
from tf_amp.training.checkpoints.record import Record
from tf_amp.training.loss_scale.saved_scale import (
    SavedScale,
    given,
    is_usable,
    kind_of,
    mismatch,
    say_fresh,
)
from tf_amp.training.loss_scale.scale_state import PREFIX, ScaleState
from tf_amp.training.loss_scale.variables import states_of

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
def _restore(
    restore: Callable[..., Any], saver: Any, sess: Any, save_path: Any
) -> None:
    """Do what `Saver.restore` does; a checkpoint need not hold our variables."""
    shapes = None if tf.executing_eagerly() else _shapes_in(save_path)
    if sess is None or shapes is None:
        restore(saver, sess, save_path)
        return
    path = tf.compat.as_text(save_path)
    host.current().memory.resume(next(iter(side_file.read(path)), Record()).plans)
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
def _save(
    save: Callable[..., Any], saver: Any, sess: Any, *args: Any, **kwargs: Any
) -> Any:
    """Do what `Saver.save` does; it needs no initialized state, and keeps the plans."""
    if not tf.executing_eagerly() and sess is not None:
        for state in states_of(sess.graph):
            state.initialize_missing(sess)
    path = save(saver, sess, *args, **kwargs)
    if path:
        side_file.write(path, Record(plans=host.current().memory.known()))
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


HOOKS = {
    private.BULK_RESTORE: _restore_in_bulk,
    private.SAVE_NAMES: _save,
    private.RESTORE_NAMES: _restore,
    private.RESTORE_OBJECTS_BY_NAMES: _make_saver,
    private.REMOVE_CHECKPOINT: acting_after(
        lambda result, checkpoint_prefix, *_, **__: side_file.remove(checkpoint_prefix)
    ),
    private.REPORT_UNINITIALIZED: _report_uninitialized,
}
