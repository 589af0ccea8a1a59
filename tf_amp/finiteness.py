"""Whether gradients are finite, on this replica and on all.

Their sum is finite only if all of them are, and costs one pass. It overflows also where
many values are near float32's limit: only then is each looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp import _tensorflow_private_training as private


def is_scalable(value: Any) -> bool:
    """Tell whether something is a tensor that a loss scale can multiply."""
    return isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_complex
    )


def are_finite(gradients: Sequence[Any]) -> Any:
    """Tell whether all gradients are finite, bool scalar."""
    if private.in_xla_context():
        return each_is_finite(gradients)
    return tf.cond(
        sum_is_finite(gradients),
        lambda: tf.constant(True),
        lambda: each_is_finite(gradients),
    )


def sum_is_finite(gradients: Sequence[Any]) -> Any:
    """Tell whether the sum of all is finite: then each is; bool scalar."""
    axes: dict[int | None, Any] = {}
    sums = [_real_sum(gradient, axes) for gradient in gradients]
    return tf.math.is_finite(tf.add_n(sums))


def each_is_finite(gradients: Sequence[Any]) -> Any:
    """Tell whether all gradients are finite, looking at each value; bool scalar."""
    return tf.reduce_all(
        tf.stack([tf.reduce_all(_is_finite(gradient)) for gradient in gradients])
    )


def largest_of(gradients: Sequence[Any]) -> Any:
    """Return the largest absolute value, float32; on average over the replicas."""
    sizes = [tf.cast(tf.abs(gradient), tf.float32) for gradient in gradients]
    # The maximum of nothing is -inf.
    largest = tf.reduce_max(tf.stack([0.0, *map(tf.reduce_max, sizes)]))
    if not on_several_replicas():
        return largest
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.MEAN, largest)


def agreed(finite: Any) -> Any:
    """Return whether something holds on all replicas."""
    if not on_several_replicas():
        return finite
    context = tf.distribute.get_replica_context()
    against = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(context.all_reduce(tf.distribute.ReduceOp.SUM, against), 0.0)


def on_several_replicas() -> bool:
    """Tell whether this code is run, or traced, once for each of several replicas."""
    if tf.distribute.in_cross_replica_context():
        return False
    return bool(tf.distribute.get_replica_context().num_replicas_in_sync > 1)


def must_select() -> bool:
    """Tell whether both of two outcomes are to be computed, and one taken.

    XLA does that faster than it branches, and replicas cannot meet within branches.
    """
    return private.in_xla_context() or on_several_replicas()


def _is_finite(gradient: Any) -> Any:
    if not gradient.dtype.is_complex:
        return tf.math.is_finite(gradient)
    real, imaginary = tf.math.real(gradient), tf.math.imag(gradient)
    return tf.logical_and(tf.math.is_finite(real), tf.math.is_finite(imaginary))


def _real_sum(gradient: Any, axes: dict[int | None, Any]) -> Any:
    """Return the sum of a gradient in float32; gradients of one rank share the axes."""
    rank = gradient.shape.rank
    if rank is not None and rank not in axes:
        axes[rank] = tf.constant(list(range(rank)), tf.int32)
    total = tf.reduce_sum(gradient, axis=axes.get(rank))
    if total.dtype.is_complex:
        total = tf.math.real(total) + tf.math.imag(total)
    return tf.cast(total, tf.float32)
