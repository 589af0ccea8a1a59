"""The loops of a graph, lowered to nodes: which runs in which, and how often.

A frame begins at its Enter nodes and ends at its Exit nodes; every node in between
runs once per iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    IDENTITY_OPS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
    SWITCH_OPS,
)
from grappler_pass.graph.walks import reached

if TYPE_CHECKING:
    from grappler_pass.graph.view import Node, Port

# Times a loop body is assumed to run when the graph does not show it.
TRIP_COUNT_GUESS = 16.0


class Frame(NamedTuple):
    """A while loop's frame; `trip_count` is how often its body runs per entry."""

    name: str
    parent: Frame | None
    trip_count: float
    depth: int

    @property
    def weight(self) -> float:
        """How often the body runs per step, outer loops included."""
        outer = self.parent.weight if self.parent else 1.0
        return self.trip_count * outer


def frames_of(nodes: Sequence[Node], order: Sequence[int]) -> Sequence[Frame | None]:
    """Return the innermost frame of every node.

    A node without inputs in a frame (a constant with a control edge from the loop's
    pivot) is in the frame of that control edge.
    """
    frames: list[Frame | None] = [None] * len(nodes)
    if not any(node.op in ENTER_OPS for node in nodes):
        return frames
    trip_counts = _trip_counts(nodes)
    known: dict[tuple[str, Frame | None], Frame] = {}
    for i in order:
        node = nodes[i]
        around = filter(None, (frames[source] for source in node.sources))
        frames[i] = outer = max(around, key=lambda frame: frame.depth, default=None)
        if node.op in ENTER_OPS:
            name = node.proto.attr["frame_name"].s.decode()
            count = trip_counts.get(name, TRIP_COUNT_GUESS)
            frame = Frame(name, outer, count, 1 + (outer.depth if outer else 0))
            frames[i] = known.setdefault((name, outer), frame)
        elif node.op in EXIT_OPS:
            frames[i] = outer.parent if outer else None
    return frames


def _trip_counts(nodes: Sequence[Node]) -> dict[str, float]:
    """Read counts from loops whose condition is `counter < integer`.

    The counter is assumed to start at 0 and to step by 1, as tf.while_loop's own
    counters and tf.range loops do. Several bounds (maximum_iterations beside the
    user's) are joined by LogicalAnd: the smallest holds. The loop of a gradient counts
    to what its forward loop has counted.
    """
    conditions = {
        _frame_name_above(nodes, node): node.inputs[0].node
        for node in nodes
        if node.op == "LoopCond"
    }

    def bounds_of(condition: int) -> Iterator[float]:
        """Yield the constants that the counters below a condition are compared to."""
        for port in compared_to(nodes, condition):
            bound = nodes[port.node]
            while _hands_on(nodes, bound):
                bound = nodes[bound.inputs[0].node]
            if bound.op in EXIT_OPS:
                forward = conditions.get(_frame_name_above(nodes, bound))
                # Only an earlier loop: a loop cannot be bounded by its own exit.
                yield from () if forward is None else bounds_of(forward)
            else:
                yield from counts_in(bound.proto)

    counts: dict[str, float] = {}
    for frame, condition in conditions.items():
        bound = min(bounds_of(condition), default=None)
        if bound is not None and frame is not None:
            counts[frame] = max(1.0, bound)
    return counts


def compared_to(nodes: Sequence[Node], condition: int) -> Iterator[Port]:
    """Yield what numbers are less than, if a condition that LogicalAnd joins holds."""
    node = nodes[condition]
    if node.op in ("LogicalAnd", "Identity"):
        for port in node.inputs:
            yield from compared_to(nodes, port.node)
    elif node.op == "Less":
        yield node.inputs[1]


def counts_in(bound: NodeDef) -> Iterator[float]:
    """Yield the number that an integer constant holds; nothing for other nodes.

    What is compared to a float is rarely a counter: a residual, say, to a tolerance.
    """
    if bound.op != "Const" or not tf.as_dtype(bound.attr["dtype"].type).is_integer:
        return
    value = tf.make_ndarray(bound.attr["value"].tensor)
    if value.size == 1:
        yield float(value.item())


def _hands_on(nodes: Sequence[Node], node: Node) -> bool:
    """Return whether a node only hands its first input on, the same in every iteration.

    Not done: a Merge of branches.
    """
    return node.op in ENTER_OPS | IDENTITY_OPS or is_unchanged(nodes, node)


def is_unchanged(nodes: Sequence[Node], node: Node) -> bool:
    """Return whether a node is a Merge whose own value comes around its loop."""
    if node.op not in MERGE_OPS:
        return False
    around = nodes[node.inputs[-1].node]
    while around.op in IDENTITY_OPS | NEXT_ITERATION_OPS:
        around = nodes[around.inputs[0].node]
    return around.op in SWITCH_OPS and around.inputs[0].node == node.index


def _frame_name_above(nodes: Sequence[Node], node: Node) -> str | None:
    """Walk from a loop's LoopCond or Exit to an Enter of the same loop."""

    def before(i: int) -> list[int]:
        # An Exit is of an inner loop, or one before: not this frame.
        if nodes[i].op in EXIT_OPS and i != node.index:
            return []
        is_merge = nodes[i].op in MERGE_OPS
        return [port.node for port in nodes[i].inputs[: 1 if is_merge else None]]

    found = (nodes[i] for i in reached([node.index], before))
    enters = (each for each in found if each.op in ENTER_OPS)
    return next((str(e.proto.attr["frame_name"].s.decode()) for e in enters), None)
