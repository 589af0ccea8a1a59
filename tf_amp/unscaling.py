"""One call for gradients: scaled seeds in, true gradients and a vote out.

Before   d loss / d weight
After    unscale(d (scale * loss) / d weight), or zeros if one of them overflowed

Unscaling is in float32 at least and carries the barrier mark, so that whatever follows
sees true gradients in full precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.state_updates import BARRIER
from tf_amp import _tensorflow_private_training as private
from tf_amp.loss_scaling.protocol import LossScale, Seen
from tf_amp.loss_scaling.variables import ScaleState, state_of
from tf_amp.votes import Vote, cast_vote, votes_behind


class ScaledCall:
    """The state of a loss scale as one call for gradients uses it."""

    def __init__(self, loss_scale: LossScale) -> None:
        """Read the state."""
        self._loss_scale = loss_scale
        self._state: ScaleState = state_of(loss_scale)
        self._reading = self._state.read()

    def seeds(self, seeds: Sequence[Any]) -> list[Any]:
        """Return the gradients to start from, scaled; None stays."""
        given = [seed for seed in seeds if seed is not None]
        scaled = iter(self._loss_scale.scale(given, self._reading))
        return [None if seed is None else next(scaled) for seed in seeds]

    def unscaled(self, gradients: Sequence[Any]) -> list[Any]:
        """Return true gradients, of at least float32's precision."""
        wide = [_widened(gradient) for gradient in gradients]
        unscaled = self._loss_scale.unscale(wide, self._reading)
        for before, after in zip(wide, unscaled, strict=True):
            if after is not before:
                _mark(after)
        return list(unscaled)

    def results(self, gradients: Any) -> Any:
        """Return a structure of scaled gradients in true units, or zeros.

        None, integer parts of `IndexedSlices` and the like stay as they are.
        """

        def finish(scaled: Sequence[Any]) -> list[Any]:
            unscaled = self.unscaled(scaled)
            return self._checked(unscaled, are_finite(unscaled))

        return map_scalable(finish, gradients)

    def checked_results(self, values: Any, finite: Any) -> Any:
        """Return what was made of unscaled gradients, or zeros where told so."""
        return map_scalable(lambda parts: self._checked(parts, finite), values)

    def _checked(self, unscaled: Sequence[Any], finite: Any) -> list[Any]:
        """Adjust the loss scale; return the gradients, zeros unless all are finite."""
        finite = agreed(finite)
        earlier = [vote.finite for vote in votes_behind(unscaled)]
        whole = tf.reduce_all(tf.stack([finite, *earlier])) if earlier else finite
        counts = tf.reduce_all(tf.stack(earlier)) if earlier else None

        def settle(step_is_finite: Any) -> list[Any]:
            return self._settle(step_is_finite, counts, unscaled)

        adjusting = _operations(settle(finite))
        with tf.control_dependencies(adjusting):
            whole = tf.identity(whole)
        in_graph = not tf.executing_eagerly() and not _in_function()
        settled = whole.op if in_graph and not earlier else None
        vote = Vote(whole, finite, self._state, settle, settled, tuple(adjusting))
        results = _zeros_unless(whole, unscaled)
        cast_vote(results, vote)
        return results

    def _settle(self, finite: Any, counts: Any, gradients: Sequence[Any]) -> list[Any]:
        """Adjust the state; where an earlier overflow explains this one, do not.

        Variables of several replicas cannot be assigned to within a branch.
        """
        if counts is None and not _selects():
            adjusted = tf.cond(
                finite,
                lambda: self._write(True, gradients),
                lambda: self._write(False, gradients),
            )
            return [adjusted]
        good, bad = self._after(True, gradients), self._after(False, gradients)
        values = {
            name: tf.where(
                finite,
                good.get(name, self._reading[name]),
                bad.get(name, self._reading[name]),
            )
            for name in {**good, **bad}
        }
        if counts is not None:
            values = {
                name: tf.where(counts, value, self._reading[name])
                for name, value in values.items()
            }
        return self._state.write(values)

    def _write(self, finite: bool, gradients: Sequence[Any]) -> Any:
        written = self._state.write(self._after(finite, gradients))
        with tf.control_dependencies(_operations(written)):
            return tf.constant(finite)

    def _after(self, finite: bool, gradients: Sequence[Any]) -> dict[str, Any]:
        """Return what of the state changes after finite, or other, gradients."""
        reading = self._reading
        seen = Seen(finite, lambda: _largest(gradients))
        if finite:
            counters = {"good_steps": reading["good_steps"] + 1, "finite": 1}
        else:
            skipped = reading["skipped_steps"] + 1
            counters = {"good_steps": 0, "skipped_steps": skipped, "finite": 0}
        changed = {**counters, **self._loss_scale.adjust(reading, seen)}
        return {name: tf.cast(v, reading[name].dtype) for name, v in changed.items()}


def is_scalable(value: Any) -> bool:
    """Tell whether something is a tensor that a loss scale can multiply."""
    return isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_complex
    )


def map_scalable(compute: Callable[[list[Any]], list[Any]], structure: Any) -> Any:
    """Return a structure with its floating and complex parts computed anew."""
    flat = tf.nest.flatten(structure, expand_composites=True)
    places = [i for i, part in enumerate(flat) if is_scalable(part)]
    if not places:
        return structure
    results = compute([flat[i] for i in places])
    for i, result in zip(places, results, strict=True):
        flat[i] = tf.cast(result, flat[i].dtype)
    return tf.nest.pack_sequence_as(structure, flat, expand_composites=True)


def are_finite(gradients: Sequence[Any]) -> Any:
    """Tell whether all gradients are finite, bool scalar.

    Their sum is finite only if they are, and costs one pass. It overflows also where
    many are near float32's limit: then each is looked at.
    """
    if private.in_xla_context():
        return each_is_finite(gradients)
    axes: dict[int | None, Any] = {}
    total = tf.add_n([_real_sum(gradient, axes) for gradient in gradients])
    return tf.cond(
        tf.math.is_finite(total),
        lambda: tf.constant(True),
        lambda: each_is_finite(gradients),
    )


def each_is_finite(gradients: Sequence[Any]) -> Any:
    """Tell whether all gradients are finite, looking at each value; bool scalar."""
    return tf.reduce_all(
        tf.stack([tf.reduce_all(_is_finite(gradient)) for gradient in gradients])
    )


def agreed(finite: Any) -> Any:
    """Return whether something holds on all replicas."""
    if not _several_replicas():
        return finite
    context = tf.distribute.get_replica_context()
    against = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, against), 0.0)


def _several_replicas() -> bool:
    if tf.distribute.in_cross_replica_context():
        return False
    return bool(tf.distribute.get_replica_context().num_replicas_in_sync > 1)


def _selects() -> bool:
    """Tell whether both branches are computed, and one is taken."""
    return private.in_xla_context() or _several_replicas()


def _zeros_unless(finite: Any, gradients: Sequence[Any]) -> list[Any]:
    if _selects():
        return [tf.where(finite, g, tf.zeros_like(g)) for g in gradients]
    return list(
        tf.cond(
            finite,
            lambda: [tf.identity(g) for g in gradients],
            lambda: [tf.zeros_like(g) for g in gradients],
        )
    )


def _is_finite(gradient: Any) -> Any:
    if not gradient.dtype.is_complex:
        return tf.math.is_finite(gradient)
    real, imaginary = tf.math.real(gradient), tf.math.imag(gradient)
    return tf.logical_and(tf.math.is_finite(real), tf.math.is_finite(imaginary))


def _real_sum(gradient: Any, axes: dict[int | None, Any]) -> Any:
    """Return the sum of a gradient in float32; gradients of one rank share the axes."""
    rank = gradient.shape.rank
    if rank is not None and rank not in axes:
        axes[rank] = tf.range(rank)
    total = tf.reduce_sum(gradient, axis=axes.get(rank))
    if total.dtype.is_complex:
        total = tf.math.real(total) + tf.math.imag(total)
    return tf.cast(total, tf.float32)


def _largest(gradients: Sequence[Any]) -> Any:
    sizes = [tf.cast(tf.abs(gradient), tf.float32) for gradient in gradients]
    largest = tf.reduce_max(tf.stack([_max_or_zero(size) for size in sizes]))
    if not _several_replicas():
        return largest
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.MEAN, largest)


def _max_or_zero(sizes: Any) -> Any:
    # The maximum of nothing is -inf.
    return tf.maximum(tf.reduce_max(sizes), 0.0)


def _widened(gradient: Any) -> Any:
    if gradient.dtype in (tf.float16, tf.bfloat16):
        return tf.cast(gradient, tf.float32)
    return gradient


def _mark(tensor: Any) -> None:
    """Let nothing that follows from a tensor go to low precision."""
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    if not hasattr(tensor, "numpy"):
        tensor.op._set_attr(BARRIER, AttrValue(b=True))


def _operations(values: Sequence[Any]) -> list[Any]:
    """Return what to depend on; nothing under eager execution."""
    if tf.executing_eagerly():
        return []
    return [value for value in values if value is not None]


def _in_function() -> bool:
    return bool(tf.compat.v1.get_default_graph().building_function)
