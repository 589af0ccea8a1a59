"""One bucket of gradients added up across replicas, in 16 bits on the wire.

Each replica owns a shard of the bucket. It gets this shard from all others in 16 bits,
adds in float32, and sends the sum to all others in 16 bits. Twice (n - 1) / n of the
bucket leave each of n replicas, as in a ring, which is the least that is possible; but
values are rounded twice, not once per hop.

Replicas use the sum as it was sent, the owner too: all end with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from keras_callbacks.all_reduce.buckets import Bucket
from keras_callbacks.all_reduce.encoding import Encoding


def exchange(
    gradients: Sequence[Sequence[Any]],
    devices: Sequence[str],
    bucket: Bucket,
    encoding: Encoding,
    *,
    is_mean: bool,
) -> list[list[Any]]:
    """Return the sums, or means, of some gradients on every replica.

    Args:
      gradients: per replica, those of the bucket, float32.
      devices: of the replicas.
      bucket: the gradients' sizes; static.
      encoding: what they travel in.
      is_mean: whether to divide by the number of replicas.
    """
    shards = bucket.shards(len(devices))
    sent = []
    for device, own in zip(devices, gradients, strict=True):
        with tf.device(device):
            flat = [tf.reshape(gradient, [-1]) for gradient in own]
            sent.append(encoding.encode(flat, shards))
    sums = []
    for owner, device in enumerate(devices):
        with tf.device(device):
            parts = [encoding.decode(messages[owner]) for messages in sent]
            total = tf.add_n(parts)
            total = total / len(devices) if is_mean else total
            sums += encoding.encode([total], shards[owner : owner + 1])
    return [
        _unpacked(sums, device, bucket, own, encoding)
        for device, own in zip(devices, gradients, strict=True)
    ]


def _unpacked(
    sums: Sequence[Any],
    device: str,
    bucket: Bucket,
    like: Sequence[Any],
    encoding: Encoding,
) -> list[Any]:
    with tf.device(device):
        parts = encoding.decode_split(sums, bucket.sizes)
        return [
            tf.reshape(part, gradient.shape)
            for part, gradient in zip(parts, like, strict=True)
        ]
