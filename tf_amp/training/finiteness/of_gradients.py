"""Whether gradients are finite, on this replica and on all.

The sum of their squares is finite only if all of them are, and costs one operation for
each. It overflows also where they are beyond 10^19: only then is each value looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private


def is_scalable(value: Any) -> bool:
    """Return whether something is a tensor that a loss scale can multiply."""
    return isinstance(value, tf.Tensor) and (
        value.dtype.is_floating or value.dtype.is_complex
    )


def are_finite(gradients: Sequence[Any]) -> Any:
    """Return whether all gradients are finite, bool scalar."""
    if private.in_xla_context():
        return each_is_finite(gradients)
    return tf.cond(
        sum_is_finite(gradients),
        lambda: tf.constant(True),
        lambda: each_is_finite(gradients),
    )


def sum_is_finite(gradients: Sequence[Any]) -> Any:
    """Return whether the sum of all squares is finite: then each is; bool scalar."""
    return tf.math.is_finite(tf.add_n([_sum_of_squares(g) for g in gradients]))


def each_is_finite(gradients: Sequence[Any]) -> Any:
    """Return whether all gradients are finite, looking at each value; bool scalar."""
    return tf.reduce_all(
        tf.stack([tf.reduce_all(_is_finite(gradient)) for gradient in gradients])
    )


def largest_of(gradients: Sequence[Any]) -> Any:
    """Return the largest absolute value, on any replica, as a finite float32 scalar."""
    sizes = [tf.cast(tf.abs(gradient), tf.float32) for gradient in gradients]
    # The maximum of nothing is -inf.
    largest = tf.reduce_max(tf.stack([0.0, *map(tf.reduce_max, sizes)]))
    # What only float64 holds has become infinite.
    largest = tf.minimum(largest, tf.float32.max)
    if not on_several_replicas():
        return largest
    context = tf.distribute.get_replica_context()
    # Replicas exchange sums and means only: in a vector, each has a place of its own.
    place, places = context.replica_id_in_sync_group, context.num_replicas_in_sync
    own = tf.one_hot(place, places, on_value=largest, off_value=0.0)
    return tf.reduce_max(summed_over_replicas(own))


def agreed(finite: Any) -> Any:
    """Return whether something holds on all replicas."""
    if not on_several_replicas():
        return finite
    against = tf.cast(tf.logical_not(finite), tf.float32)
    return tf.equal(summed_over_replicas(against), 0.0)


def summed_over_replicas(own: Any) -> Any:
    """Return the sum of what each replica has."""
    if not on_several_replicas():
        return own
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, own)


def on_several_replicas() -> bool:
    """Return whether this code is run, or traced, once for each of several replicas."""
    if tf.distribute.in_cross_replica_context():
        return False
    return bool(tf.distribute.get_replica_context().num_replicas_in_sync > 1)


def must_select() -> bool:
    """Return whether both of two outcomes are to be computed, and one taken.

    XLA does that faster than it branches, and replicas cannot meet within branches: not
    even one that is alone.
    """
    if private.in_xla_context() or on_several_replicas():
        return True
    return private.is_replica_thread()


def _is_finite(gradient: Any) -> Any:
    if not gradient.dtype.is_complex:
        return tf.math.is_finite(gradient)
    real, imaginary = tf.math.real(gradient), tf.math.imag(gradient)
    return tf.logical_and(tf.math.is_finite(real), tf.math.is_finite(imaginary))


def _sum_of_squares(gradient: Any) -> Any:
    """Return half of it, float32 scalar."""
    if gradient.dtype.is_complex:
        parts = tf.math.real(gradient), tf.math.imag(gradient)
        return tf.add_n([_sum_of_squares(part) for part in parts])
    return tf.cast(tf.nn.l2_loss(gradient), tf.float32)
