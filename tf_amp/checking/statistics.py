"""What is kept of the values of a tensor, batch after batch."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from tf_amp.checking.differences import Array
from tf_amp.checking.ranges import Ranges, TensorRange

# Halfway from the largest value to what would come next: from here on it is infinity.
_OVERFLOW = {"float16": 65520.0, "bfloat16": 3.3961775e38}
# Half of the least value: up to here it becomes zero.
_UNDERFLOW = {"float16": 2.0**-25, "bfloat16": 2.0**-134}


class Statistics:
    """Ranges of many tensors, by number; records may come from several threads."""

    def __init__(self, tensors: Sequence[TensorRange]) -> None:
        """Begin with tensors of which nothing was seen."""
        self._seen = list(tensors)
        self._last_batch = [0] * len(self._seen)
        self._batch = 0
        self._lock = threading.Lock()

    def add_tensors(self, tensors: Sequence[TensorRange]) -> int:
        """Take in further tensors; return the number of the first."""
        with self._lock:
            first = len(self._seen)
            self._seen.extend(tensors)
            self._last_batch.extend([0] * len(tensors))
        return first

    def next_batch(self) -> None:
        """Count what is recorded from now on to another batch."""
        self._batch += 1

    def record(self, number: Array, value: Array) -> None:
        """Take in a tensor's values."""
        part = range_of_values(value)
        with self._lock:
            place = int(number)
            is_new = self._last_batch[place] != self._batch
            self._last_batch[place] = self._batch
            merged = merged_ranges(self._seen[place], part, self._batch)
            batches = merged.batches + is_new
            self._seen[place] = dataclasses.replace(merged, batches=batches)

    def ranges(self) -> Ranges:
        """Return what was seen; tensors that never came are left out."""
        seen = tuple(each for each in self._seen if each.values)
        return Ranges(seen, self._batch)


@dataclasses.dataclass(frozen=True)
class Part:
    """The range of one value of a tensor; names as in `TensorRange`."""

    largest: float
    smallest: float
    values: int
    nonzero: int
    not_finite: int
    overflow: Mapping[str, int]
    underflow: Mapping[str, int]


def range_of_values(value: Array) -> Part:
    """Return the range of an array; counts nothing twice where all is in range."""
    magnitude = np.abs(value).ravel()
    finite = np.isfinite(magnitude)
    lost = int(magnitude.size - np.count_nonzero(finite))
    if lost:
        magnitude = magnitude[finite]
    largest = float(magnitude.max(initial=0.0))
    positive = magnitude[magnitude > 0.0]
    smallest = float(positive.min(initial=math.inf))
    return Part(
        largest=largest,
        smallest=smallest,
        values=int(value.size),
        nonzero=int(positive.size),
        not_finite=lost,
        overflow={
            name: int(np.count_nonzero(magnitude >= limit)) if largest >= limit else 0
            for name, limit in _OVERFLOW.items()
        },
        underflow={
            name: int(np.count_nonzero(positive <= limit)) if smallest <= limit else 0
            for name, limit in _UNDERFLOW.items()
        },
    )


def merged_ranges(seen: TensorRange, part: Part, batch: int) -> TensorRange:
    """Return a range widened by another value of the tensor.

    Args:
      seen: so far.
      part: what comes in.
      batch: number of the batch that it belongs to.
    """
    is_larger = part.largest > seen.largest or not seen.values
    return dataclasses.replace(
        seen,
        largest=max(seen.largest, part.largest),
        largest_in=batch if is_larger else seen.largest_in,
        smallest=min(seen.smallest, part.smallest),
        values=seen.values + part.values,
        nonzero=seen.nonzero + part.nonzero,
        not_finite=seen.not_finite + part.not_finite,
        overflow=_summed(seen.overflow, part.overflow),
        underflow=_summed(seen.underflow, part.underflow),
    )


def _summed(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + count for name, count in second.items()}
