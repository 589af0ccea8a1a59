"""What loops add up, and how they keep what a tensor is in all iterations.

Graphs that a gradient was taken of hold both: a sum per weight, and lists that the
loop pushes to and the loop of its gradient pops from.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32, DT_INT64, DT_VARIANT

from grappler_pass.fusions.matching import NewNodes, with_inputs
from grappler_pass.graph.editing import new_node
from grappler_pass.graph.op_table import (
    ENTER_OPS,
    EXIT_OPS,
    IDENTITY_OPS,
    MERGE_OPS,
    NEXT_ITERATION_OPS,
)
from grappler_pass.graph.view import Graph, Node, Port, Reader

# What runs in each iteration to keep what one tensor is.
NODES_OF_LIST = 3


class Total(NamedTuple):
    """A sum that a loop adds to in each iteration.

    Attributes:
      add: the node that does.
      term: what it adds.
      enter: by which the sum enters the loop.
      switch: which passes it on to the next iteration, or out of the loop.
      exit: by which it leaves the loop.
    """

    add: Node
    term: Node
    enter: Node
    switch: Node
    exit: Node


def _carried(view: Graph, switch: Node) -> tuple[Node, Node] | None:
    """Return how a loop's variable enters the loop, and how it comes around."""
    merge = view.nodes[switch.inputs[0].node] if switch.op == "Switch" else switch
    if merge.op not in MERGE_OPS or len(merge.inputs) != 2:
        return None
    enter, around = (view.nodes[port.node] for port in merge.inputs)
    is_carried = enter.op in ENTER_OPS and around.op in NEXT_ITERATION_OPS
    return (enter, around) if is_carried else None


def total_of(view: Graph, add: Node) -> Total | None:
    """Return what a node adds to in each iteration of a loop, and nobody else reads."""
    nodes = view.nodes
    if len(add.inputs) != 2:
        return None
    for total, term in (add.inputs, add.inputs[::-1]):
        switch = nodes[total.node]
        ends = _carried(view, switch) if total.output == 1 else None
        if not ends:
            continue
        enter, around = ends
        merge = nodes[switch.inputs[0].node]
        exits = [nodes[r.node] for r in view.readers(Port(switch.index, 0))]
        chain = (nodes[term.node], add, around, merge, switch, *exits)
        reads = [set(view.read_by(node.index)) for node in chain[:-1]]
        if (
            [node.op in EXIT_OPS for node in exits] == [True]
            and around.inputs == (Port(add.index, 0),)
            and reads[:4] == [{node.index} for node in chain[1:5]]
            and reads[4] == {add.index, exits[0].index}
        ):
            return Total(add, nodes[term.node], enter, switch, exits[0])
    return None


def pushed_to(view: Graph, exit_: Node) -> Port | None:
    """Return what each iteration of a loop pushes to a list that leaves it.

    The list is empty as the loop begins, and holds nothing else.
    """
    switch = view.nodes[exit_.inputs[0].node]
    ends = _carried(view, switch) if exit_.op in EXIT_OPS else None
    if not ends:
        return None
    enter, around = ends
    begin = view.source(enter.inputs[0], IDENTITY_OPS)
    push = view.nodes[around.inputs[0].node]
    if (
        begin.op != "EmptyTensorList"
        or push.op != "TensorListPushBack"
        or push.inputs[0] != Port(switch.index, 1)
    ):
        return None
    return push.inputs[1]


def popped(view: Graph, port: Port) -> Port | None:
    """Return the list whose items a tensor of a loop is, the last one first."""
    while view.nodes[port.node].op in IDENTITY_OPS:
        port = view.nodes[port.node].inputs[0]
    pop = view.nodes[port.node]
    if pop.op != "TensorListPopBack" or port.output != 1:
        return None
    ends = _carried(view, view.nodes[pop.inputs[0].node])
    if not ends or pop.inputs[0].output != 1:
        return None
    enter, around = ends
    return enter.inputs[0] if around.inputs[0] == Port(pop.index, 0) else None


def kept_rows(view: Graph) -> Iterator[tuple[Port, str]]:
    """Yield what behind a loop holds the rows of a tensor in all iterations."""
    for node in view.nodes:
        if node.op == "TensorListConcatV2":
            port = pushed_to(view, view.nodes[node.inputs[0].node])
            if port is not None:
                yield port, node.name


def list_of(
    new: NewNodes, total: Total, port: Port, shape: tuple[int, ...], dtype: int
) -> tuple[str, str]:
    """Let a loop keep what a tensor is in each iteration, in the order of these.

    Args:
      new: the list is put in there.
      total: a sum of the loop.
      port: the tensor.
      shape: of it; -1 stands for any size.
      dtype: of it.

    Returns:
      The list as it leaves the loop, and the constant that holds the shape.
    """
    size = new.constant(shape, DT_INT32, (len(shape),))
    sizes = new.add(size, "shape", (len(shape),))
    most = new.add(new.constant(-1, DT_INT32), "most", ())
    types = {"element_dtype": dtype, "shape_type": DT_INT32}
    empty = new_node("EmptyTensorList", inputs=(sizes, most), **types)
    begin = with_inputs(total.enter, {})
    begin.input[:] = [new.add(empty, "empty", None)]
    begin.attr["T"].type = DT_VARIANT
    entered = new.add(begin, "enter", None)
    # The Merge reads what comes around once that is there.
    merge = new_node("Merge", inputs=(entered, entered), T=DT_VARIANT, N=2)
    merged = new.add(merge, "merge", None)
    turn = merged, new.text(total.switch.inputs[1])
    turned = new.add(new_node("Switch", inputs=turn, T=DT_VARIANT), "turn", None)
    pushed = f"{turned}:1", new.text(port)
    push = new_node("TensorListPushBack", inputs=pushed, element_dtype=dtype)
    around = new_node(
        "NextIteration", inputs=[new.add(push, "push", None)], T=DT_VARIANT
    )
    reader = Reader(new.edited.index[merged], 1)
    new.edited.read(reader, new.add(around, "around", None))
    leave = new_node("Exit", inputs=[turned], T=DT_VARIANT)
    return new.add(leave, "exit", None), sizes


def rows_of(
    new: NewNodes, total: Total, port: Port, columns: int, rows: dict[Port, str]
) -> str:
    """Return the rows that a tensor of a loop has in all iterations.

    Args:
      new: they are put in there, unless they are known.
      total: a sum of the loop.
      port: the tensor, a matrix.
      columns: of it.
      rows: known so far, by what they are in each iteration.
    """
    if port not in rows:
        items, sizes = list_of(new, total, port, (-1, columns), DT_FLOAT)
        lengths = new.add(new.constant((), DT_INT64, (0,)), "lengths", (0,))
        types = {"element_dtype": DT_FLOAT, "shape_type": DT_INT32}
        concat = new_node("TensorListConcatV2", "", (items, sizes, lengths), **types)
        rows[port] = new.add(concat, "rows", (None, columns))
    return rows[port]
