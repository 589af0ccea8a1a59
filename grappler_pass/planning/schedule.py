"""The order in which an executor takes the nodes of one step, roughly.

A node runs once all it waits for has run, in the order in which nodes become ready. A
loop counts with one iteration, and what comes after it waits for all of that.
"""

from __future__ import annotations

from collections.abc import Iterator

from grappler_pass.graph.loops import Frame
from grappler_pass.graph.op_table import EXIT_OPS, MERGE_OPS, NEXT_ITERATION_OPS
from grappler_pass.graph.view import GraphView


def schedule(view: GraphView) -> tuple[int, ...]:
    """Return node numbers in the order in which they run."""
    if not any(node.op in EXIT_OPS for node in view.nodes):
        return view.order
    exits: dict[Frame, list[int]] = {}
    for node in view.nodes:
        inside = view.frame(node.inputs[0].node) if node.op in EXIT_OPS else None
        if inside is not None:
            exits.setdefault(inside, []).append(node.index)
    members: dict[Frame, int] = {}
    for node in view.nodes:
        for frame in _frames(view.frame(node.index)):
            members[frame] = members.get(frame, 0) + 1
    waiting = [_inputs_of_one_iteration(view, i) for i in range(len(view.nodes))]
    for gated in exits.values():
        for index in gated:
            waiting[index] += 1
    order = [i for i, count in enumerate(waiting) if count == 0]
    for index in order:
        for target in _released(view, index, members, exits):
            waiting[target] -= 1
            if waiting[target] == 0:
                order.append(target)
    assert len(order) == len(view.nodes), "a loop waits for what comes after it"
    return tuple(order)


def _inputs_of_one_iteration(view: GraphView, index: int) -> int:
    node = view.nodes[index]
    back = node.op in MERGE_OPS and sum(
        view.nodes[source].op in NEXT_ITERATION_OPS
        for source in (*(port.node for port in node.inputs), *node.controls)
    )
    return len(node.inputs) + len(node.controls) - back


def _released(
    view: GraphView,
    index: int,
    members: dict[Frame, int],
    exits: dict[Frame, list[int]],
) -> Iterator[int]:
    """Yield, once per edge, what waits for a node or for the loop it is the last of."""
    ends = view.nodes[index].op in NEXT_ITERATION_OPS
    readers = [
        reader.node
        for port in view.output_ports(index)
        for reader in view.readers(port)
    ]
    for target in (*readers, *view.control_readers(index)):
        if not (ends and view.nodes[target].op in MERGE_OPS):
            yield target
    for frame in _frames(view.frame(index)):
        members[frame] -= 1
        if members[frame] == 0:
            yield from exits.get(frame, ())


def _frames(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.parent
