"""What has to be computed again where a loss scale is another one."""

from __future__ import annotations

from typing import NamedTuple

from grappler_pass.graph.loops import Frame
from grappler_pass.graph.op_table import EXIT_OPS, NEXT_ITERATION_OPS, READ_OPS
from grappler_pass.graph.op_traits import has_effects, is_random
from grappler_pass.graph.view import GraphView, Node, Port, split_input
from grappler_pass.graph.walks import reached
from grappler_pass.rewriting.second_try.calls import Call, scope_of


class Region(NamedTuple):
    """What lies between the scale of a call and its gradients, by number.

    Attributes:
      scaled: nodes that are computed from the scale.
      all: the same, and whatever else is in a loop that some of them are in.
    """

    scaled: frozenset[int]
    all: frozenset[int]


def region_of(view: GraphView, call: Call) -> Region | None:
    """Return what is to be computed again; None where that might have effects."""
    scale = port_of(view, call.scale)
    own = view.frame(scale.node)

    def is_between(index: int) -> bool:
        """Say whether a node is of this round of a loop, and adjusts no loss scale."""
        node = view.nodes[index]
        if own is not None and own not in view.loops(index):
            return False
        is_next = node.op in NEXT_ITERATION_OPS and view.frame(index) == own
        return not is_next and not scope_of(node.name)

    def readers(index: int) -> list[int]:
        return [i for i in view.read_by(index) if is_between(i)]

    def sources(index: int) -> list[int]:
        return [port.node for port in view.nodes[index].inputs]

    starts = [r.node for r in view.readers(scale) if is_between(r.node)]
    after = set(reached(starts, readers))
    ends = [port_of(view, text).node for text in call.gradients]
    before = set(reached(ends, sources))
    scaled = frozenset(after & before)
    whole = scaled | _in_loops(view, scaled, view.loops(scale.node))
    if not scaled.issuperset(ends) or any(_is_unique(view.nodes[i]) for i in whole):
        return None
    return Region(scaled, whole)


def port_of(view: GraphView, text: str) -> Port:
    """Return the port that an input string names."""
    name, output = split_input(text)
    return Port(view.index[name], output)


def _in_loops(
    view: GraphView, scaled: frozenset[int], around: tuple[Frame, ...]
) -> frozenset[int]:
    """Return what belongs to the loops that some nodes are in, but not all around."""
    loops = {loop for i in scaled for loop in view.loops(i)}.difference(around)
    if not loops:
        return frozenset()
    inside = {n.index for n in view.nodes if not loops.isdisjoint(view.loops(n.index))}
    exits = {
        node.index
        for node in view.nodes
        if node.op in EXIT_OPS and node.inputs[0].node in inside
    }
    return frozenset(inside | exits)


def _is_unique(node: Node) -> bool:
    """Say whether a node cannot be run twice with the same outcome."""
    if node.op in READ_OPS:
        return False
    return has_effects(node.op) or is_random(node.op)
