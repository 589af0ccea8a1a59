"""Copies of weights on the host, and what travels between them and the weights.

The weights of the model stay what counts: whoever writes to them (a checkpoint that is
restored, an average put in their place) is noticed by a fingerprint, and its copy is
read anew before the next update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp.errors import ConfigError

_UNSEEN = -1
# 2^64 by the golden ratio, as a signed number, and half of its bits.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_HALF = 32


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Where the copies are, and the types that gradients and weights travel in."""

    device: str
    down: tf.DType
    up: tf.DType


class HostCopies:
    """The copies of one optimizer's variables, in the same order.

    Not a trackable object: a checkpoint of the optimizer holds what it always does.
    """

    def __init__(self, variables: Sequence[Any], transfer: Transfer) -> None:
        """Make copies and fingerprints on the host.

        Raises:
          ConfigError: a variable is not float32, or distributed.
        """
        self.originals = tuple(map(_plain, variables))
        self._transfer = transfer
        for variable in self.originals:
            _check(variable)
        # Slots, and what weight decay leaves alone, go by the names of the weights.
        root = tf.name_scope("")
        with tf.init_scope(), tf.device(transfer.device), root:
            self.copies = tuple(map(_copy, variables))
            self._seen = tuple(
                tf.Variable(tf.constant(_UNSEEN, tf.int64), trainable=False)
                for _ in variables
            )
        self._index = {v.ref(): i for i, v in enumerate(self.originals)}
        self._index |= {v.ref(): i for i, v in enumerate(self.copies)}

    def copy_of(self, variable: Any) -> Any:
        """Return the copy of a variable; of a stranger, itself."""
        return self._counterpart(variable, self.copies)

    def original_of(self, variable: Any) -> Any:
        """Return what a variable is a copy of; of a stranger, itself."""
        return self._counterpart(variable, self.originals)

    def _counterpart(self, variable: Any, among: Sequence[Any]) -> Any:
        index = self._index.get(_plain(variable).ref())
        return variable if index is None else among[index]

    def refresh(self) -> None:
        """Read the weights anew that somebody else has written.

        Others may be less than their copies, which are not rounded.
        """
        now = [_on(v.device, _fingerprint, v) for v in self.originals]
        with tf.device(self._transfer.device):
            seen = tf.stack([each.read_value() for each in self._seen])
            written = tf.not_equal(tf.stack(now), seen)
            tf.cond(
                tf.reduce_any(written),
                lambda: self._read(written, now),
                lambda: tf.constant(False),
            )

    def _read(self, written: tf.Tensor, now: Sequence[tf.Tensor]) -> tf.Tensor:
        with tf.device(self._transfer.device):
            for i, copy in enumerate(self.copies):
                original = tf.identity(self.originals[i])
                copy.assign(tf.where(written[i], original, copy))
                self._seen[i].assign(now[i])
            return tf.constant(True)

    def gradient_down(self, gradient: Any, variable: Any) -> Any:
        """Return a gradient on the host, in float32 again."""
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            with tf.device(self._transfer.device):
                indices = tf.identity(gradient.indices)
            values = self._down(gradient.values, variable)
            return tf.IndexedSlices(values, indices, gradient.dense_shape)
        return self._down(gradient, variable)

    def _down(self, values: Any, variable: Any) -> tf.Tensor:
        original = self.original_of(variable)
        rounded = _on(original.device, tf.cast, values, self._transfer.down)
        with tf.device(self._transfer.device):
            return tf.cast(tf.identity(rounded), tf.float32)

    def weights_up(self, variables: Sequence[Any]) -> None:
        """Write copies to the weights they are of."""
        for variable in variables:
            index = self._index[_plain(variable).ref()]
            original, copy = self.originals[index], self.copies[index]
            with tf.device(self._transfer.device):
                rounded = tf.cast(copy.read_value(), self._transfer.up)
                self._seen[index].assign(_fingerprint(tf.cast(rounded, tf.float32)))
            with tf.device(original.device):
                original.assign(tf.cast(tf.identity(rounded), tf.float32))


def _plain(variable: Any) -> Any:
    """Return the `tf.Variable` of a Keras variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def _check(variable: Any) -> None:
    if variable.dtype != tf.float32:
        raise ConfigError(
            f"offload_optimizer: received the variable {variable.name!r} of type "
            f"{variable.dtype.name}; allowed is float32."
        )
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    if is_distributed or tf.distribute.has_strategy():
        raise ConfigError(
            "offload_optimizer: received variables of a tf.distribute strategy; "
            "allowed is one device, without a strategy."
        )


def _copy(variable: Any) -> tf.Variable:
    plain = _plain(variable)
    # One that is made while a function is traced has no value yet; it is read before
    # the first update.
    has_value = not tf.executing_eagerly() or plain.is_initialized()
    copy = tf.Variable(
        tf.identity(plain) if has_value else tf.zeros(plain.shape),
        name=plain.name.partition(":")[0],
        trainable=False,
        constraint=variable.constraint,
    )
    # Keras names slots after it.
    vars(copy)["path"] = getattr(variable, "path", plain.name)
    return copy


def _fingerprint(values: Any) -> tf.Tensor:
    """Return a sum of all bits, taken as integers, by place: exact, in any order."""
    sums = tf.cast(tf.bitcast(tf.convert_to_tensor(values), tf.int32), tf.int64)
    for _ in range(len(sums.shape)):
        sums = tf.reduce_sum(sums * _factors(tf.shape(sums)[-1]), axis=-1)
    return sums


def _factors(size: Any) -> tf.Tensor:
    """Return odd numbers for the places on an axis, in no arithmetic order.

    With equal steps between them, what is written mirrored could have the same sum.
    """
    mixed = tf.range(1, tf.cast(size, tf.int64) + 1) * _GOLDEN
    mixed = tf.bitwise.bitwise_xor(mixed, tf.bitwise.right_shift(mixed, _HALF))
    return tf.bitwise.bitwise_or(mixed * _GOLDEN, tf.ones_like(mixed))


def _on(device: str, function: Any, *args: Any) -> Any:
    with tf.device(device):
        return function(*args)
