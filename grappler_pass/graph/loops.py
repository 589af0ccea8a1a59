"""Which loop each node runs in, and how often its body runs.

A frame begins at its Enter nodes and ends at its Exit nodes; every node in between
runs once per iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import dtypes, tensor_util

from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
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

    @property
    def weight(self) -> float:
        """How often the body runs per step, outer loops included."""
        outer = self.parent.weight if self.parent else 1.0
        return self.trip_count * outer


def frames_of(nodes: Sequence[Node], order: Sequence[int]) -> tuple[Frame | None, ...]:
    """Return the innermost frame of every node.

    A node without inputs in a frame (a constant with a control edge from the loop's
    pivot) is in the frame of that control edge.
    """
    frames: list[Frame | None] = [None] * len(nodes)
    if not any(node.op in ENTER_OPS for node in nodes):
        return tuple(frames)
    trip_counts = _trip_counts(nodes)
    known: dict[tuple[str, Frame | None], Frame] = {}
    for i in order:
        node = nodes[i]
        outer = _deepest(frames[source] for source in node.sources)
        if node.op in ENTER_OPS:
            name = node.proto.attr["frame_name"].s.decode()
            count = trip_counts.get(name, TRIP_COUNT_GUESS)
            frames[i] = known.setdefault((name, outer), Frame(name, outer, count))
        elif node.op in EXIT_OPS:
            frames[i] = outer.parent if outer else None
        else:
            frames[i] = outer
    return tuple(frames)


def _depth(frame: Frame | None) -> int:
    return 0 if frame is None else 1 + _depth(frame.parent)


def _deepest(frames: Iterable[Frame | None]) -> Frame | None:
    return max(filter(None, frames), key=_depth, default=None)


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
    counts: dict[str, float] = {}
    for frame, condition in conditions.items():
        bounds = _bounds(nodes, conditions, condition)
        if bounds and frame is not None:
            counts[frame] = max(1.0, min(bounds))
    return counts


def _bounds(
    nodes: Sequence[Node], conditions: Mapping[str | None, int], condition: int
) -> list[float]:
    """Return the constants that the counters below `condition` are compared to."""
    found: list[float] = []
    for port in compared_to(nodes, condition):
        bound = nodes[port.node]
        while _hands_on(nodes, bound):
            bound = nodes[bound.inputs[0].node]
        if bound.op in EXIT_OPS:
            forward = conditions.get(_frame_name_above(nodes, bound))
            # Only an earlier loop: a loop cannot be bounded by its own exit.
            found += [] if forward is None else _bounds(nodes, conditions, forward)
        else:
            found += counts_in(bound.proto)
    return found


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
    if bound.op != "Const" or not dtypes.as_dtype(bound.attr["dtype"].type).is_integer:
        return
    value = tensor_util.MakeNdarray(bound.attr["value"].tensor)
    if value.size == 1:
        yield float(value.item())


def _hands_on(nodes: Sequence[Node], node: Node) -> bool:
    """Return whether a node only hands its first input on, the same in every iteration.

    A Merge does if what comes around the loop is the Merge's own value.
    """
    if node.op not in MERGE_OPS:
        return node.op in ENTER_OPS or node.op == "Identity"
    around = nodes[node.inputs[-1].node]
    while around.op == "Identity" or around.op in NEXT_ITERATION_OPS:
        around = nodes[around.inputs[0].node]
    return around.op == "Switch" and around.inputs[0].node == node.index


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
