"""Which operations of executed graphs compute in 16 bits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

# DT_HALF and DT_BFLOAT16 of TensorFlow's types.proto.
_LOW = frozenset({19, 14})


@dataclasses.dataclass(frozen=True)
class OpCounts:
    """Operations of the graph that TensorFlow executed.

    Attributes:
      total: all of them.
      low: those that compute in 16 bits, casts aside.
      casts: casts to or from 16 bits.
      onednn: those rewritten to kernels of oneDNN.
    """

    total: int
    low: int
    casts: int
    onednn: int


def count_ops_of_graphs(graphs: Sequence[Any]) -> OpCounts:
    """Return the counts of GraphDefs, those of the functions they hold included."""
    functions = (each for graph in graphs for each in graph.library.function)
    nodes = (graph.node for graph in graphs)
    bodies = (function.node_def for function in functions)
    return count_ops(itertools.chain.from_iterable(itertools.chain(nodes, bodies)))


def count_ops(nodes: Iterable[Any]) -> OpCounts:
    """Return how many operations compute in 16 bits, or cast to or from them."""
    ops = [(node.op, _is_low(node.attr.values())) for node in nodes]
    return OpCounts(
        total=len(ops),
        low=sum(low for op, low in ops if op != "Cast"),
        casts=sum(low for op, low in ops if op == "Cast"),
        onednn=sum(op.startswith("_Mkl") for op, _ in ops),
    )


def _is_low(attributes: Iterable[Any]) -> bool:
    return any(
        each.type in _LOW or not _LOW.isdisjoint(each.list.type) for each in attributes
    )
