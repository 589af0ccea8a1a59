"""State and solve the assignment of 16 bits as a minimum cut.

Two labels with pairwise terms that only charge disagreement are submodular, so the cut
is the exact optimum of the cost model (Kolmogorov and Zabih, "What energy functions
can be minimized via graph cuts?", PAMI 2004). The source side is low precision, the
sink side float32.

A tensor cast for several readers is cast, and charged, once. For port p and readers r:

  cast up    p low, some r float32    p --c_up--> a --inf--> every r
  cast down  p float32, some r low    every r --inf--> b --c_down--> p

What the terms stand for is decided by who states the problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from grappler_pass.eligibility.regions import connected

# scipy returns a flow of 0 for capacities beyond int32; residual capacities reach
# twice the largest one.
INFINITY = 2**30
_FINITE_SUM = 2**29

FLOAT32_SIDE = -1


class CastTerm(NamedTuple):
    """What it costs when the two ends of one port's edges differ in color.

    Attributes:
      producer: variable that governs the port, FLOAT32_SIDE where it is fixed.
      readers: variables that govern the reading inputs; FLOAT32_SIDE for fixed ones.
      up_seconds: charged once when the producer is low and any reader is float32.
      down_seconds: charged once when the producer is float32 and any reader is low.
      error: standard deviation of the logarithm of either.
    """

    producer: int
    readers: frozenset[int]
    up_seconds: float
    down_seconds: float
    error: float = 0.0


class Problem(NamedTuple):
    """What each binary variable costs float32 and low, and a term for each port."""

    float32_seconds: Sequence[float]
    low_seconds: Sequence[float]
    casts: Sequence[CastTerm]

    def seconds(self, low: Sequence[bool]) -> float:
        """Return the cost of an assignment."""
        nodes = sum(
            low_s if is_low else f32_s
            for is_low, f32_s, low_s in zip(
                low, self.float32_seconds, self.low_seconds, strict=True
            )
        )
        return nodes + sum(cast_seconds(term, low) for term in self.casts)


def cast_seconds(term: CastTerm, low: Sequence[bool]) -> float:
    """Return the seconds of the casts at one port under an assignment."""
    readers_low = [r != FLOAT32_SIDE and low[r] for r in term.readers]
    if term.producer != FLOAT32_SIDE and low[term.producer]:
        return 0.0 if all(readers_low) else term.up_seconds
    return term.down_seconds if any(readers_low) else 0.0


def seconds_of_flips(problem: Problem, low: Sequence[bool]) -> list[float]:
    """Return for each variable the seconds that its change would add."""
    own = zip(low, problem.float32_seconds, problem.low_seconds, strict=True)
    more = [f32_s - low_s if is_low else low_s - f32_s for is_low, f32_s, low_s in own]
    flipped = list(low)
    for term in problem.casts:
        present = cast_seconds(term, low)
        for variable in {term.producer, *term.readers} - {FLOAT32_SIDE}:
            flipped[variable] = not low[variable]
            more[variable] += cast_seconds(term, flipped) - present
            flipped[variable] = low[variable]
    return more


def minimum_cut(problem: Problem, *, low_at_ties: bool = False) -> tuple[bool, ...]:
    """Return for every variable whether it is low; ties go to float32 by default.

    Seconds are rounded to 2**-29 of the sum of all terms; a smaller difference counts
    as a tie. A side that takes infinitely long is not chosen.
    """
    count = len(problem.float32_seconds)
    # Variables first, then the source and the sink, then what joins readers.
    source, sink = count, count + 1
    edges, vertices = _edges(problem, source, sink)
    if not edges:
        return (low_at_ties,) * count
    rows, columns, seconds = (np.array(part) for part in zip(*edges, strict=True))
    # Integers whose finite sum stays below what int32 holds.
    finite = np.isfinite(seconds)
    scale = _FINITE_SUM / max(float(seconds[finite].sum()), 1e-30)
    scaled = np.full(len(edges), INFINITY, dtype=np.int64)
    scaled[finite] = np.floor(seconds[finite] * scale).astype(np.int64)
    assert scaled[finite].sum() < INFINITY, "capacities exceed what is infinite"
    matrix = coo_matrix((scaled, (rows, columns)), shape=(vertices, vertices)).tocsr()
    # What has no choice may pay for a cast on the same edge.
    matrix.data = np.minimum(matrix.data, INFINITY)
    capacities = matrix.astype(np.int32)
    residual = (capacities - maximum_flow(capacities, source, sink).flow).tocsr()
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    # What the source still reaches is the smallest low side among all minimum cuts;
    # what still reaches the sink, the smallest float32 side.
    start, end = source, sink
    if low_at_ties:
        residual, start, end = residual.T.tocsr(), end, start
    reached = np.zeros(vertices, dtype=bool)
    reached[breadth_first_order(residual, start, return_predecessors=False)] = True
    assert not reached[end], "an augmenting path is left: the flow is not maximal"
    return tuple(bool(b) != low_at_ties for b in reached[:count])


_Edge = tuple[int, int, float]


def _edges(problem: Problem, source: int, sink: int) -> tuple[list[_Edge], int]:
    """Return the edges of the network with their seconds, and its size."""
    edges: list[_Edge] = []
    for v, (f32, low) in enumerate(
        zip(problem.float32_seconds, problem.low_seconds, strict=True)
    ):
        if low < f32:
            edges.append((source, v, f32 - low))
        elif f32 < low:
            edges.append((v, sink, low - f32))
    vertices = sink + 1
    for term in problem.casts:
        readers = term.readers - {term.producer}
        if readers and term.producer != FLOAT32_SIDE and term.up_seconds > 0.0:
            ends = {sink} if FLOAT32_SIDE in readers else readers
            edges += _charged_once(term.producer, ends, term.up_seconds, vertices)
            vertices += len(ends) > 1
        readers -= {FLOAT32_SIDE}
        if readers and term.down_seconds > 0.0:
            target = sink if term.producer == FLOAT32_SIDE else term.producer
            down = _charged_once(target, readers, term.down_seconds, vertices)
            edges += [(to, begin, seconds) for begin, to, seconds in down]
            vertices += len(readers) > 1
    return edges, vertices


def _charged_once(
    begin: int, ends: Set[int], seconds: float, joint: int
) -> list[_Edge]:
    """Return edges to some ends of which any number costs as much as one."""
    if len(ends) == 1:
        return [(begin, end, seconds) for end in ends]
    return [(begin, joint, seconds), *((joint, end, np.inf) for end in sorted(ends))]


def islands(
    problem: Problem, low: Sequence[bool], anchors: Iterable[int]
) -> tuple[int, ...]:
    """Return the low variables of an assignment with no anchor in low reach of them.

    Anchors are the variables of allow slots.
    """

    def is_low(variable: int) -> bool:
        return variable != FLOAT32_SIDE and low[variable]

    pairs = [(variable, variable) for variable in filter(is_low, range(len(low)))]
    for term in problem.casts:
        if is_low(term.producer):
            pairs += ((term.producer, r) for r in filter(is_low, term.readers))
    wanted = set(anchors)
    alone = (group for group in connected(pairs) if wanted.isdisjoint(group))
    return tuple(sorted(itertools.chain.from_iterable(alone)))
