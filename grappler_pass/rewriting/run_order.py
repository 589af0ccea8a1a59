"""Run what frees memory before a step goes on, so that it holds less.

Before   dy --> gradient of the input --> ... (the rest of the backward pass)
         dy, x --> gradient of the weights (ready, but run at any time until the end)
After    the rest waits for the gradient of the weights: x and dy are freed

TensorFlow's executor goes on with what it has just made ready, and leaves the rest for
later. The chain of a step is its deepest node, and of all that this waits for, again
and again, the deepest. What else reads a large tensor runs before the chain goes on
from where it is ready, if what is left of it then is smaller than the tensor.

Values are the same, bit by bit. There is no cycle: each edge leads to a node that is
further along the chain than all that its source waits for. What leaves a loop waits for
all that enters it.

Not done: for what has effects, since a variable may be read after its update then; in
loops and downstream of a branch; across devices; for what is fetched; for tensors of
less than a hundredth of what the step holds.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

from grappler_pass.annotations import REWRITTEN
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_traits import has_effects
from grappler_pass.graph.view import Graph, Port
from grappler_pass.graph.walks import reached
from grappler_pass.planning.live_set import Peak

_SHARE = 0.01
# What these hand out is there before the step, and after it.
_STAYING = table.INPUT_OPS | table.CONSTANT_OPS | table.VARIABLE_OPS | table.READ_OPS
# Control edges never get a cast; and a wide & deep step then held 8 % more.
_NOT_WAITED_FOR = table.RESULT_OPS | {"Cast"}


def plain_nodes(view: Graph) -> frozenset[int]:
    """Return the nodes that run once in each step: in no loop, behind no branch."""
    switches = (
        node.index
        for node in view.nodes
        if node.op in table.SWITCH_OPS and view.frame(node.index) is None
    )
    behind_branches = frozenset(
        reached(switches, lambda i: (*view.read_by(i), *view.control_readers(i)))
    )
    return frozenset(
        node.index
        for node in view.nodes
        if view.frame(node.index) is None
        and node.op not in table.CONTROL_FLOW_OPS
        and node.index not in behind_branches
    )


def with_early_readers(view: Graph, peak: Peak, given: Container[str]) -> Graph:
    """Return the graph in which what frees memory runs as soon as it can.

    Args:
      view: the graph.
      peak: the moment at which it holds most.
      given: names of the nodes that may be waited for.
    """
    graph = view.copy()
    for before, after in _Order(view, peak).edges():
        name = view.nodes[after].name
        if view.nodes[before].name not in given:
            continue
        graph.wait(name, [f"^{view.nodes[before].name}"])
        graph.edit(name).attr[REWRITTEN].b = True
    return graph


class _Order:
    """The chain of a step, and what is ready beside it.

    Attributes:
      chain: nodes, in order.
      ready: for each node, how many of the chain it waits for, itself among them.
    """

    def __init__(self, view: Graph, peak: Peak) -> None:
        self._view, self._peak = view, peak
        self._plain = plain_nodes(view)
        depth, deepest = dict[int, int](), dict[int, int]()
        for number in peak.order:
            sources = [i for i in view.waits_for(number) if i in depth]
            if sources:
                deepest[number] = max(sources, key=depth.__getitem__)
            depth[number] = 1 + depth[deepest[number]] if sources else 0
        last = sorted(depth, key=depth.__getitem__)[-1:]
        chain = reached(last, lambda i: [deepest[i]] if i in deepest else [])
        self.chain = tuple(chain)[::-1]
        self._place = {number: place for place, number in enumerate(self.chain, 1)}
        self.ready = dict[int, int]()
        for number in peak.order:
            awaited = (self.ready.get(i, 0) for i in view.waits_for(number))
            self.ready[number] = self._place.get(number) or max(awaited, default=0)

    def edges(self) -> Iterator[tuple[int, int]]:
        """Yield what is to run first, and the node of the chain that waits for it."""
        least = _SHARE * self._peak.live_set.size
        for number in self._peak.order:
            if self._view.nodes[number].op in _STAYING:
                continue
            for port in self._view.output_ports(number):
                if self._peak.size(port) >= least:
                    yield from self._edges_of(port)

    def _edges_of(self, port: Port) -> Iterator[tuple[int, int]]:
        """Yield the edges by which a tensor is freed in time."""
        view, readers = self._view, [r.node for r in self._view.readers(port)]
        moment = max(self.ready.get(reader, 0) for reader in readers)
        if not moment:
            return
        early = frozenset(
            reached(
                filter(self._is_beside, readers),
                lambda i: [j for j in self._following(i) if self.ready[j] <= moment],
            )
        )
        left = sum(
            self._peak.size(written)
            for number in early
            for written in view.output_ports(number)
            if any(reader.node not in early for reader in view.readers(written))
        )
        if left >= self._peak.size(port):
            return
        for number in early:
            if early.isdisjoint(self._following(number)):
                yield from (
                    (number, waiting)
                    for waiting in self.chain[moment : moment + 1]
                    if waiting in self._plain
                    and view.nodes[waiting].device == view.nodes[number].device
                    and number not in view.nodes[waiting].sources
                )

    def _is_beside(self, number: int) -> bool:
        """Return whether a node is none of the chain, and may run at any time."""
        node = self._view.nodes[number]
        return (
            number in self.ready
            and number in self._plain
            and number not in self._place
            and node.op not in _NOT_WAITED_FOR
            and not has_effects(node.op)
            and node.name not in self._view.item.untouchable
        )

    def _following(self, number: int) -> list[int]:
        """Return what reads a node, or waits for it, beside the chain."""
        view = self._view
        both = (*view.read_by(number), *view.control_readers(number))
        return [*filter(self._is_beside, both)]
