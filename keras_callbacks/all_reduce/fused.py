"""The exchange as `tf.distribute.MirroredStrategy` takes it.

Only what is reduced onto variables is sent in 16 bits, which is how optimizers hand
gradients over (those of Keras 3 as `mirrored` has it). Whatever else a program reduces
keeps its precision: the vote of a loss scale, moments of a batch, metrics.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_callbacks.all_reduce.encoding import (
    BYTES_PER_ELEMENT,
    DEFAULT_BUCKET_BYTES,
    ENCODINGS,
    Bucket,
    Encoding,
    buckets_of,
    exchange,
)
from tf_amp._tensorflow_private import all_reduce as private

_Pair = tuple[Any, Any]
_FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Traffic:
    """One way to exchange the gradients of a step.

    Collectives are started one by one; bytes go from device to device, over all
    devices.
    """

    way: str
    collectives: int
    bytes_moved: int

    def __str__(self) -> str:
        """Return one line."""
        megabytes = self.bytes_moved / 1e6
        return f"{self.way}: {self.collectives} collectives, {megabytes:.3f} MB"


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What becomes of the gradients of one optimizer, per step.

    Attributes:
      replicas: that take part.
      tensors: dense gradients, exchanged in 16 bits.
      left: gradients that TensorFlow exchanges one by one: sparse ones, and those that
        are not float32 or whose shape is known only when they are there.
      before: what `tf.distribute.ReductionToOneDevice` does with the dense ones.
      after: what is done instead.
    """

    replicas: int
    tensors: int
    left: int
    before: Traffic
    after: Traffic

    def __str__(self) -> str:
        """Return a paragraph."""
        share = self.after.bytes_moved / max(self.before.bytes_moved, 1)
        lines = [
            f"{self.tensors} gradients on {self.replicas} replicas, per step",
            f"  before  {self.before}",
            f"  after   {self.after} ({share:.1%} of the bytes)",
        ]
        if self.left:
            lines.append(f"  {self.left} more, sparse or not float32, as before")
        return "\n".join(lines)


def to_one_device(sizes: Sequence[int], replicas: int) -> Traffic:
    """Count what `tf.distribute.ReductionToOneDevice` moves, tensor by tensor."""
    moved = _moved(_FLOAT32_BYTES * sum(sizes), replicas)
    return Traffic("ReductionToOneDevice float32", len(sizes), moved)


def in_16_bits(buckets: Sequence[Bucket], encoding: Encoding, replicas: int) -> Traffic:
    """Count what the exchange in 16 bits moves, exponents included."""
    # Each message carries an exponent where it is scaled.
    exponents = replicas if encoding.is_scaled else 0
    elements = sum(bucket.elements + exponents for bucket in buckets)
    moved = _moved(BYTES_PER_ELEMENT * elements, replicas)
    return Traffic(f"fused {encoding.dtype}", len(buckets), moved)


def _moved(data_bytes: int, replicas: int) -> int:
    """Return what an all-reduce sends: in each of two phases, all but a share."""
    return 2 * (replicas - 1) * data_bytes


class FusedAllReduce(tf.distribute.ReductionToOneDevice):  # type: ignore[misc]
    """Exchange dense gradients in buckets of 16-bit values; the rest as it was."""

    def __init__(self, dtype: str, bucket_bytes: int = DEFAULT_BUCKET_BYTES) -> None:
        """Choose a 16-bit type, and the bytes that travel together at most.

        Smaller buckets start earlier, while other gradients are still computed, and are
        more.
        """
        super().__init__()
        self._encoding = ENCODINGS[dtype]
        self._bucket_bytes = bucket_bytes
        self._exchanges: dict[Exchange, None] = {}

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return what has been exchanged so far, each kind once."""
        return tuple(self._exchanges)

    def batch_reduce_implementation(
        self, reduce_op: Any, value_destination_pairs: Any, options: Any
    ) -> list[Any]:
        """Reduce values to their destinations; see `tf.distribute.CrossDeviceOps`."""
        pairs = list(value_destination_pairs)
        fused = _fusable(pairs)
        others = [i for i in range(len(pairs)) if i not in set(fused)]
        results: list[Any] = [None] * len(pairs)
        if fused:
            reduced = self._fused(reduce_op, [pairs[i] for i in fused], len(others))
            for i, value in zip(fused, reduced, strict=True):
                results[i] = value
        for i in others:
            value, destination = pairs[i]
            results[i] = self.reduce_implementation(
                reduce_op, value, destination, options
            )
        return results

    def _fused(self, reduce_op: Any, pairs: Sequence[_Pair], left: int) -> list[Any]:
        devices = _devices(pairs[0][1])
        sizes = [value.values[0].shape.num_elements() for value, _ in pairs]
        buckets = buckets_of(sizes, self._bucket_bytes)
        replicas = len(devices)
        before = to_one_device(sizes, replicas)
        after = in_16_bits(buckets, self._encoding, replicas)
        self._exchanges[Exchange(replicas, len(sizes), left, before, after)] = None
        is_mean = reduce_op == tf.distribute.ReduceOp.MEAN
        results: list[Any] = [None] * len(pairs)
        for bucket in buckets:
            given = [
                [pairs[i][0].values[replica] for i in bucket.places]
                for replica in range(replicas)
            ]
            reduced = exchange(given, devices, bucket, self._encoding, is_mean=is_mean)
            for position, place in enumerate(bucket.places):
                values = tuple(replica[position] for replica in reduced)
                results[place] = private.mirrored(values)
        return results


def _fusable(pairs: Sequence[_Pair]) -> list[int]:
    """Return the places of dense float32 gradients of variables on the same devices."""
    places = [i for i, pair in enumerate(pairs) if _is_dense_gradient(*pair)]
    devices = _devices(pairs[places[0]][1]) if places else ()
    return [i for i in places if _devices(pairs[i][1]) == devices]


def _is_dense_gradient(value: Any, destination: Any) -> bool:
    if not isinstance(destination, tf.Variable):
        return False
    if len(value.values) != len(_devices(destination)):
        return False
    return all(
        isinstance(part, tf.Tensor)
        and part.dtype == tf.float32
        and part.shape.is_fully_defined()
        for part in value.values
    )


def _devices(variable: Any) -> tuple[str, ...]:
    return tuple(part.device for part in getattr(variable, "values", ()))
