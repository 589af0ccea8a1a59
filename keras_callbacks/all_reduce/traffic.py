"""What an exchange of gradients moves, counted without running it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from keras_callbacks.all_reduce.buckets import BYTES_PER_ELEMENT, Bucket
from keras_callbacks.all_reduce.encoding import Encoding

_FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Traffic:
    """One way to exchange the gradients of a step.

    Attributes:
      way: its name.
      collectives: exchanges that are started one by one.
      bytes_moved: from device to device, over all devices.
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


def packed(sizes: Sequence[int], replicas: int, packs: int = 1) -> Traffic:
    """Count what `tf.distribute.NcclAllReduce(packs)` moves, in rings."""
    moved = _moved(_FLOAT32_BYTES * sum(sizes), replicas)
    return Traffic(f"NcclAllReduce({packs}) float32", packs, moved)


def fused(buckets: Sequence[Bucket], encoding: Encoding, replicas: int) -> Traffic:
    """Count what the exchange in 16 bits moves, exponents included."""
    elements = sum(
        bucket.elements + replicas * encoding.extra_elements for bucket in buckets
    )
    moved = _moved(BYTES_PER_ELEMENT * elements, replicas)
    return Traffic(f"fused {encoding.dtype}", len(buckets), moved)


def _moved(data_bytes: int, replicas: int) -> int:
    """Return what an all-reduce sends: in each of two phases, all but a share."""
    return 2 * (replicas - 1) * data_bytes
