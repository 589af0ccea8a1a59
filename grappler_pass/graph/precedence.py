"""Which of a few nodes surely run before which, by the edges of the graph."""

from __future__ import annotations

from collections.abc import Iterable

from grappler_pass.graph.op_table import NEXT_ITERATION_OPS
from grappler_pass.graph.view import GraphView


class Precedence:
    """The order among a few watched nodes, by sweeps over the graph.

    Back edges of loops are followed, so two nodes of one loop that reach each other
    run both before and after one another.
    """

    def __init__(self, view: GraphView, watched: Iterable[int]) -> None:
        """Find which of the `watched` nodes, by number, lead to which."""
        self._bit = {node: 1 << i for i, node in enumerate(sorted(watched))}
        self._masks = [0] * len(view.nodes)
        while self._sweep(view):
            pass

    def _sweep(self, view: GraphView) -> bool:
        """Pass every node's ancestors on; tell whether a back edge brought news."""
        news = False
        for i in view.order:
            node = view.nodes[i]
            mask = self._bit.get(i, 0)
            for source, _ in node.inputs:
                mask |= self._masks[source]
            for source in node.controls:
                mask |= self._masks[source]
            if mask != self._masks[i]:
                self._masks[i] = mask
                news = news or node.op in NEXT_ITERATION_OPS
        return news

    def leads_to(self, first: int, second: int) -> bool:
        """Return whether `second` waits for `first`, maybe in an earlier iteration."""
        return bool(self._masks[second] & self._bit[first])

    def surely_before(self, first: int, second: int) -> bool:
        """Return whether `first` runs before `second`, and never after it."""
        return self.leads_to(first, second) and not self.leads_to(second, first)
