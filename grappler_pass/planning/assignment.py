"""Choose a color for every eligible slot: a minimum s-t cut of costs and casts.

Two labels with pairwise terms that only charge disagreement are submodular, so the cut
is the exact optimum of the cost model (Kolmogorov and Zabih, "What energy functions
can be minimized via graph cuts?", PAMI 2004). The source side is low precision, the
sink side float32.

A tensor cast for several readers is cast, and charged, once. For port p and readers r:

  cast up    p low, some r float32    p --c_up--> a --inf--> every r
  cast down  p float32, some r low    every r --inf--> b --c_down--> p
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

# scipy returns a flow of 0 for capacities beyond int32; residual capacities reach
# twice the largest one.
INFINITY = 2**30
_FINITE_SUM = 2**29

FLOAT32_SIDE = -1


@dataclasses.dataclass(frozen=True)
class CastTerm:
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


@dataclasses.dataclass(frozen=True)
class Problem:
    """Binary variables, what each costs low and float32, and the casts between them.

    Attributes:
      float32_seconds: per variable.
      low_seconds: per variable.
      casts: one term per port.
    """

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
    """Return what the casts at one port cost under an assignment."""
    readers_low = [r != FLOAT32_SIDE and low[r] for r in term.readers]
    if term.producer != FLOAT32_SIDE and low[term.producer]:
        return 0.0 if all(readers_low) else term.up_seconds
    return term.down_seconds if any(readers_low) else 0.0


def minimum_cut(problem: Problem, *, low_at_ties: bool = False) -> tuple[bool, ...]:
    """Return for every variable whether it is low; ties go to float32 by default.

    Seconds are rounded to 2**-29 of the sum of all terms; a smaller difference counts
    as a tie. A side that takes infinitely long is not chosen.
    """
    count = len(problem.float32_seconds)
    if count == 0:
        return ()
    network = _network(problem)
    flow = maximum_flow(network.capacities, network.source, network.sink)
    residual = (network.capacities - flow.flow).tocsr()
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    # What the source still reaches is the smallest low side among all minimum cuts;
    # what still reaches the sink, the smallest float32 side.
    start, end = network.source, network.sink
    if low_at_ties:
        residual, start, end = residual.T.tocsr(), end, start
    reached = np.zeros(network.capacities.shape[0], dtype=bool)
    found = breadth_first_order(residual, start, return_predecessors=False)
    reached[found] = True
    assert not reached[end], "an augmenting path is left: the flow is not maximal"
    return tuple(bool(b) != low_at_ties for b in reached[:count])


@dataclasses.dataclass(frozen=True)
class _Network:
    capacities: csr_matrix
    source: int
    sink: int


def _network(problem: Problem) -> _Network:
    count = len(problem.float32_seconds)
    source, sink = count, count + 1
    edges: list[tuple[int, int, float]] = []
    for v, (f32, low) in enumerate(
        zip(problem.float32_seconds, problem.low_seconds, strict=True)
    ):
        if low < f32:
            edges.append((source, v, f32 - low))
        elif f32 < low:
            edges.append((v, sink, low - f32))
    vertices = count + 2
    for term in problem.casts:
        for edge in _up_edges(term, vertices, sink):
            edges.append(edge)
            vertices = max(vertices, edge[1] + 1)
        for edge in _down_edges(term, vertices, sink):
            edges.append(edge)
            vertices = max(vertices, edge[1] + 1, edge[0] + 1)
    return _Network(_capacities(edges, vertices), source, sink)


def _up_edges(term: CastTerm, spare: int, sink: int) -> list[tuple[int, int, float]]:
    """Charge `up_seconds` once when the producer is low and a reader is float32."""
    readers = term.readers - {term.producer}
    if term.producer == FLOAT32_SIDE or not readers or term.up_seconds <= 0.0:
        return []
    if FLOAT32_SIDE in readers:
        return [(term.producer, sink, term.up_seconds)]
    if len(readers) == 1:
        return [(term.producer, next(iter(readers)), term.up_seconds)]
    joined = [(spare, r, np.inf) for r in sorted(readers)]
    return [(term.producer, spare, term.up_seconds), *joined]


def _down_edges(term: CastTerm, spare: int, sink: int) -> list[tuple[int, int, float]]:
    """Charge `down_seconds` once when the producer is float32 and a reader is low."""
    readers = term.readers - {term.producer, FLOAT32_SIDE}
    if not readers or term.down_seconds <= 0.0:
        return []
    target = sink if term.producer == FLOAT32_SIDE else term.producer
    if len(readers) == 1:
        return [(next(iter(readers)), target, term.down_seconds)]
    joined = [(r, spare, np.inf) for r in sorted(readers)]
    return [*joined, (spare, target, term.down_seconds)]


def _capacities(edges: Sequence[tuple[int, int, float]], vertices: int) -> csr_matrix:
    """Scale seconds to integers whose finite sum stays below what int32 holds."""
    if not edges:
        return csr_matrix((vertices, vertices), dtype=np.int32)
    rows, columns, seconds = (np.array(part) for part in zip(*edges, strict=True))
    finite = np.isfinite(seconds)
    scale = _FINITE_SUM / max(float(seconds[finite].sum()), 1e-30)
    capacities = np.full(len(edges), INFINITY, dtype=np.int64)
    capacities[finite] = np.floor(seconds[finite] * scale).astype(np.int64)
    assert capacities[finite].sum() < INFINITY, "capacities exceed what is infinite"
    matrix = coo_matrix(
        (capacities, (rows, columns)), shape=(vertices, vertices)
    ).tocsr()
    assert matrix.data.max(initial=0) <= INFINITY, "an infinite edge is given twice"
    return matrix.astype(np.int32)


def islands(
    problem: Problem, low: Sequence[bool], anchors: Iterable[int]
) -> tuple[int, ...]:
    """Return the low variables whose low neighborhood holds no anchor.

    Args:
      problem: variables and the edges between them.
      low: an assignment.
      anchors: the variables of allow slots.
    """
    count = len(low)
    pairs = [
        (term.producer, reader)
        for term in problem.casts
        for reader in term.readers
        if FLOAT32_SIDE not in (term.producer, reader)
        and low[term.producer]
        and low[reader]
    ]
    rows, columns = zip(*pairs, strict=True) if pairs else ((), ())
    graph = coo_matrix((np.ones(len(pairs)), (rows, columns)), shape=(count, count))
    _, component = connected_components(graph, directed=False)
    anchored = {component[v] for v in anchors if low[v]}
    return tuple(v for v in range(count) if low[v] and component[v] not in anchored)
