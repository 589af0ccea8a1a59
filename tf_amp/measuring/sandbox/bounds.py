"""What neighbors show of data that is made up: its shape, and what integers may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tensorflow.python.framework import tensor_util

from grappler_pass.graph.op_table import FORWARDING_OPS, MERGE_OPS, VIEW_OPS
from grappler_pass.graph.shapes import Shape, Shapes, known_shape, shape_from_proto
from grappler_pass.graph.view import GraphView, Node, Port

# Ops whose output holds values of these inputs, moved but not changed (or by an
# offset that is only for negative ones).
_PASS = (
    FORWARDING_OPS
    | MERGE_OPS
    | VIEW_OPS
    | frozenset(
        """AddV2 BroadcastTo Cast ConcatV2 Maximum Minimum Pack ReadVariableOp Select
        SelectV2 StridedSlice Tile Transpose Unpack""".split()
    )
)
# Ops with results of unknown shape that have, as a rule, the shape of this input.
_SHAPED_LIKE = {"LookupTableFind": 1, "LookupTableFindV2": 1}


def shape_at(view: GraphView, shapes: Shapes, port: Port) -> Shape | None:
    """Return the shape of a port, or what a neighbor shows of it; None: unknown."""
    shape = known_shape(shapes, view, port)
    node = view.nodes[port.node]
    if shape is None and node.op in _SHAPED_LIKE:
        shape = known_shape(shapes, view, node.inputs[_SHAPED_LIKE[node.op]])
    for reader in view.readers(port):
        if shape is None and view.nodes[reader.node].op == "EnsureShape":
            shape = known_shape(shapes, view, Port(reader.node, 0))
    return shape


def upper_bounds(view: GraphView, shapes: Shapes) -> Mapping[Port, int]:
    """Return what integers at a port must be less than, where a reader shows it."""
    bounds: dict[Port, int] = {}
    for port, bound in _bounds_from_readers(view, shapes):
        waiting = [port]
        while waiting:
            port = waiting.pop()
            if bounds.get(port, bound + 1) <= bound:
                continue
            bounds[port] = bound
            node = view.nodes[port.node]
            if node.op in _PASS:
                waiting.extend(node.inputs)
    return bounds


def _bounds_from_readers(view: GraphView, shapes: Shapes) -> Iterator[tuple[Port, int]]:
    for node in view.nodes:
        if node.op not in _INDEXED:
            continue
        position, bound_of = _INDEXED[node.op]
        bound = bound_of(view, shapes, node)
        if bound:
            yield node.inputs[position], bound


def _rows(view: GraphView, shapes: Shapes, node: Node) -> int | None:
    """Return how many rows a gather chooses from."""
    shape = known_shape(shapes, view, node.inputs[0])
    axis = _constant(view, node.inputs[2]) if len(node.inputs) > 2 else 0
    if not shape or axis is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def _variable_rows(view: GraphView, shapes: Shapes, node: Node) -> int | None:
    """Return how many rows the variable behind a handle has."""
    handle = view.nodes[node.inputs[0].node]
    while handle.op in FORWARDING_OPS:
        handle = view.nodes[handle.inputs[0].node]
    attrs = handle.proto.attr
    if handle.op == "VarHandleOp":
        shape = shape_from_proto(attrs["shape"].shape)
    elif "_handle_shapes" in attrs and attrs["_handle_shapes"].list.shape:
        shape = shape_from_proto(attrs["_handle_shapes"].list.shape[0])
    else:
        return None
    return shape[0] if shape else None


def _classes(view: GraphView, shapes: Shapes, node: Node) -> int | None:
    shape = known_shape(shapes, view, node.inputs[0])
    return shape[-1] if shape else None


def _second(view: GraphView, shapes: Shapes, node: Node) -> int | None:
    return _constant(view, node.inputs[1])


def _third(view: GraphView, shapes: Shapes, node: Node) -> int | None:
    return _constant(view, node.inputs[2])


_Bound = Callable[[GraphView, Shapes, Node], "int | None"]
# Op -> which input is the index, and what it must be less than.
_INDEXED: Mapping[str, tuple[int, _Bound]] = {
    "Gather": (1, _rows),
    "GatherV2": (1, _rows),
    "OneHot": (0, _second),
    "ResourceGather": (1, _variable_rows),
    "ResourceScatterAdd": (1, _variable_rows),
    "ResourceScatterSub": (1, _variable_rows),
    "ResourceScatterUpdate": (1, _variable_rows),
    "SparseSoftmaxCrossEntropyWithLogits": (1, _classes),
    "UnsortedSegmentSum": (1, _third),
}


def _constant(view: GraphView, port: Port) -> int | None:
    node = view.nodes[port.node]
    if node.op != "Const":
        return None
    value = tensor_util.MakeNdarray(node.proto.attr["value"].tensor)
    return int(value.item()) if value.size == 1 else None
