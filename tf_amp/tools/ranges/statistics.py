"""What is kept of the values of a tensor, batch after batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from grappler_pass.fork_safety import renewed_lock
from tf_amp.config.ranges import Ranges, TensorRange
from tf_amp.tools.graph_runs.differences import Array

# Halfway from the largest value to what would come next: from here on it is infinity.
_OVERFLOW = {"float16": 65520.0, "bfloat16": 3.3961775e38}
# Half of the least value: up to here it becomes zero.
_UNDERFLOW = {"float16": 2.0**-25, "bfloat16": 2.0**-134}


@dataclasses.dataclass
class _Tensor:
    """A tensor of which records come; `last_run` of its graph had one."""

    seen: TensorRange
    graph: int
    last_run: int = 0


class Statistics:
    """Ranges of the tensors of several graphs; records come from several threads.

    A record under a negative number says that a graph begins another run: -1 the first
    graph, -2 the second.
    """

    def __init__(self) -> None:
        """Begin without tensors."""
        self._tensors: list[_Tensor] = []
        self._runs: list[int] = []
        self._lock = renewed_lock()

    def add_graph(self, tensors: Sequence[TensorRange]) -> tuple[int, int]:
        """Take in the tensors of another graph, of which nothing was seen.

        Returns:
          The number of the first, and that under which the graph's runs begin.
        """
        with self._lock:
            first, graph = len(self._tensors), len(self._runs)
            self._runs.append(0)
            self._tensors.extend(_Tensor(tensor, graph) for tensor in tensors)
        return first, -graph - 1

    def record(self, number: Array, value: Array) -> None:
        """Take in a tensor's values, or that a run begins."""
        place = int(number)
        if place < 0:
            with self._lock:
                self._runs[-place - 1] += 1
            return
        part = range_of_values(value)
        with self._lock:
            tensor = self._tensors[place]
            run = self._runs[tensor.graph]
            tensor.seen = _widened(tensor.seen, part, run, run != tensor.last_run)
            tensor.last_run = run

    def ranges(self) -> Ranges:
        """Return what was seen; tensors that never came are left out."""
        seen = tuple(each.seen for each in self._tensors if each.seen.values)
        return Ranges(seen, max(self._runs, default=0))


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


def _widened(seen: TensorRange, part: Part, run: int, is_new_run: bool) -> TensorRange:
    """Return a range widened by another value of the tensor, from some run."""
    is_larger = part.largest > seen.largest or not seen.values
    return dataclasses.replace(
        seen,
        batches=seen.batches + is_new_run,
        largest=max(seen.largest, part.largest),
        largest_in=run if is_larger else seen.largest_in,
        smallest=min(seen.smallest, part.smallest),
        values=seen.values + part.values,
        nonzero=seen.nonzero + part.nonzero,
        not_finite=seen.not_finite + part.not_finite,
        overflow=_summed(seen.overflow, part.overflow),
        underflow=_summed(seen.underflow, part.underflow),
    )


def _summed(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + count for name, count in second.items()}
