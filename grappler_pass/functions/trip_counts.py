"""How often the body of a functional loop runs, where the graph tells.

As for lowered loops (`loops`): from conditions `counter < bound`, the counter taken to
start at 0 and to step by 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from grappler_pass.functions.conversion import Library, graph_from_function
from grappler_pass.graph.loops import TRIP_COUNT_GUESS, compared_to, counts_in
from grappler_pass.graph.op_table import WHILE_OPS
from grappler_pass.graph.view import GraphView, Node, Port


def trip_count_of(view: GraphView, node: int, library: Library) -> float:
    """Return how often the body of loop number `node` of a graph runs; else a guess."""
    bounds = tuple(_bounds(view, view.nodes[node], library))
    return max(1.0, min(bounds)) if bounds else TRIP_COUNT_GUESS


def _bounds(view: GraphView, loop: Node, library: Library) -> Iterator[float]:
    """Yield what the counters in a loop's condition are compared to, where known."""
    condition = library.get(loop.proto.attr["cond"].func.name)
    if condition is None:
        return
    graph_def, item = graph_from_function(condition, library)
    inside = GraphView.from_graph_def(graph_def, item)
    for port in compared_to(inside.nodes, inside.index[item.fetch[0]]):
        bound = _behind_identities(inside, port)
        if bound.name in item.feed:
            argument = item.feed.index(bound.name)
            yield from _bound_outside(view, loop, argument, library)
        else:
            yield from counts_in(bound.proto)


def _bound_outside(
    view: GraphView, loop: Node, argument: int, library: Library
) -> Iterator[float]:
    """Yield a bound that the loop is called with: a constant, or another's count."""
    bound = _behind_identities(view, loop.inputs[argument])
    if bound.op in WHILE_OPS and bound.index != loop.index:
        # The loop of a gradient counts to what its forward loop has counted.
        yield from _bounds(view, bound, library)
    else:
        yield from counts_in(bound.proto)


def _behind_identities(view: GraphView, port: Port) -> Node:
    node = view.nodes[port.node]
    while node.op == "Identity":
        node = view.nodes[node.inputs[0].node]
    return node
