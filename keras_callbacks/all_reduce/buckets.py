"""Which gradients travel together, and which replica adds up which part of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

BYTES_PER_ELEMENT = 2
# All of ResNet-50 (51 MB in 16 bits) in one; a model ten times as large in eight.
DEFAULT_BUCKET_BYTES = 64 * 2**20


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Some tensors, end to end.

    Attributes:
      places: of its tensors, among all.
      sizes: of its tensors, in elements.
    """

    places: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Return how many elements the bucket holds."""
        return sum(self.sizes)

    def shards(self, replicas: int) -> tuple[int, ...]:
        """Return the elements that each replica adds up, as even as can be."""
        share, rest = divmod(self.elements, replicas)
        return tuple(share + (i < rest) for i in range(replicas))


def buckets_of(sizes: Sequence[int], bucket_bytes: int) -> tuple[Bucket, ...]:
    """Put tensors into buckets, the last first, as gradients become ready.

    A tensor larger than a bucket gets one of its own; none is cut. Sizes are in
    elements; a bucket holds so many bytes in 16 bits, at most.
    """
    return tuple(
        Bucket(tuple(places), tuple(sizes[i] for i in places))
        for places in _runs(sizes, bucket_bytes)
    )


def _runs(sizes: Sequence[int], bucket_bytes: int) -> Iterator[list[int]]:
    run: list[int] = []
    run_bytes = 0
    for place in reversed(range(len(sizes))):
        size_bytes = BYTES_PER_ELEMENT * sizes[place]
        if run and run_bytes + size_bytes > bucket_bytes:
            yield run
            run, run_bytes = [], 0
        run.append(place)
        run_bytes += size_bytes
    if run:
        yield run
