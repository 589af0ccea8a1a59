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


@dataclasses.dataclass
class _Tensor:
    """A tensor of which records come.

    Attributes:
      seen: so far.
      graph: that it belongs to.
      is_steady: whether it is recorded exactly once per run, as none is in a loop or a
        branch.
      last_run: of the graph, that it was recorded in.
    """

    seen: TensorRange
    graph: int
    is_steady: bool
    last_run: int = 0


class Statistics:
    """Ranges of the tensors of several graphs; records come from several threads."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._tensors: list[_Tensor] = []
        self._runs: list[int] = []
        self._lock = threading.Lock()

    def add_graph(self, tensors: Sequence[TensorRange], steady: Sequence[bool]) -> int:
        """Take in the tensors of another graph; return the number of the first.

        Args:
          tensors: of which nothing was seen.
          steady: which of them are recorded exactly once per run.
        """
        with self._lock:
            first, graph = len(self._tensors), len(self._runs)
            self._runs.append(0)
            for tensor, is_steady in zip(tensors, steady, strict=True):
                self._tensors.append(_Tensor(tensor, graph, is_steady))
        return first

    def record(self, number: Array, value: Array) -> None:
        """Take in a tensor's values."""
        part = range_of_values(value)
        with self._lock:
            tensor = self._tensors[int(number)]
            run = self._run_of(tensor)
            batches = tensor.seen.batches + (run != tensor.last_run)
            tensor.last_run = run
            merged = merged_ranges(tensor.seen, part, run)
            tensor.seen = dataclasses.replace(merged, batches=batches)

    def ranges(self) -> Ranges:
        """Return what was seen; tensors that never came are left out."""
        seen = tuple(each.seen for each in self._tensors if each.seen.values)
        return Ranges(seen, max(self._runs, default=0))

    def _run_of(self, tensor: _Tensor) -> int:
        """Return which run of its graph a record of a tensor belongs to."""
        runs = self._runs
        if tensor.is_steady:
            runs[tensor.graph] = max(runs[tensor.graph], tensor.last_run + 1)
            return tensor.last_run + 1
        return max(runs[tensor.graph], 1)


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
