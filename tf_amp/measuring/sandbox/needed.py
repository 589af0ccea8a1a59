"""Which nodes run when a graph is run."""

from __future__ import annotations

from collections.abc import Iterable

from grappler_pass.eligibility.reachability import spread
from grappler_pass.graph.view import GraphView


def roots_of(view: GraphView) -> list[int]:
    """Return what is run: what the caller relies on, or all that nobody reads."""
    wanted = [view.index[n] for n in sorted(view.item.untouchable) if n in view.index]
    if wanted:
        return wanted
    read = {port.node for node in view.nodes for port in node.inputs}
    read |= {i for node in view.nodes for i in node.controls}
    return [node.index for node in view.nodes if node.index not in read]


def needed_by(view: GraphView, roots: Iterable[int]) -> list[bool]:
    """Tell for every node whether one of `roots` is it or waits for it."""
    before: list[list[int]] = [
        [*(port.node for port in node.inputs), *node.controls] for node in view.nodes
    ]
    reached = spread(roots, before, [True] * len(before))
    return [origin >= 0 for origin in reached]
