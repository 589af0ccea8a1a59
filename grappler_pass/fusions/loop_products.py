"""Products that a loop writes to a list are computed at once, behind the loop.

Before   in the loop: items = AddN(items, SetItem(Reserve(), t, MatMul(x, w)))
         behind it: TensorListStack(items)
After    in the loop: rows = PushBack(rows, x); numbers = PushBack(numbers, t)
         behind it: UnsortedSegmentSum(Reshape(MatMul(rows, w)), numbers)

That is the gradient of the inputs of a recurrent layer: one product of all steps reads
the weights once, of rows that `loop_sums` keeps as well. Each value is computed from
the same ones as before. A loop may run as often as it likes, and write items in any
order, no item, or one item several times: these are added up.

The weights enter the loop, or the loop in front of it has kept them for its gradient:
in a list that holds the same tensor for each iteration.

Not done: where anything else reads the product or the list; where the list begins with
values other than zeros; where the weights are not the same in each iteration, or are
read by it; where sizes are not known; on GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32, DT_VARIANT

from grappler_pass.costs.calls import UNKNOWN_BATCH
from grappler_pass.fusions.loop_rows import (
    NODES_OF_LIST,
    Total,
    kept_rows,
    list_of,
    popped,
    pushed_to,
    rows_of,
    total_of,
)
from grappler_pass.fusions.matching import (
    Match,
    NewNodes,
    PricedGraph,
    is_float32,
    part_of,
)
from grappler_pass.fusions.recurrences import Outside, entry_of
from grappler_pass.graph.editing import new_node
from grappler_pass.graph.op_table import ADDITION_OPS, IDENTITY_OPS
from grappler_pass.graph.shapes import static
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Graph, Node, Port, Reader
from grappler_pass.planning.prices import NODE_SECONDS

# They take parts of a shape.
_PARTS = frozenset({"Slice", "StridedSlice"})


def products(graph: PricedGraph) -> Iterator[Match]:
    """Yield the products that a loop writes to a list, and need not compute itself."""
    view = graph.view
    outside, rows = Outside(view), dict(kept_rows(view))
    for add in view.nodes:
        if add.op not in ADDITION_OPS or view.frame(add.index) is None:
            continue
        items = _items(view, add)
        if items and _may_move(graph, items):
            weights = _weights(graph, outside, items.product)
            if weights:
                each = _ListedProduct(graph, items, weights, rows)
                root, near = items.product, items.stack
                yield Match(root, each.seconds(), near, items.like, each.write)


class _Items(NamedTuple):
    """A list that begins with zeros, and to which a loop adds products.

    Attributes:
      product: of an iteration.
      total: adds to the list what holds the product as one of its items.
      stack: alone reads the list behind the loop.
      like: a list of as many items.
    """

    product: Node
    total: Total
    stack: Node
    like: Port


def _items(view: Graph, add: Node) -> _Items | None:
    """Return the list of products that a node adds to in each iteration of a loop."""
    total = total_of(view, add)
    if not total or total.term.op != "TensorListSetItem":
        return None
    none, _, item = (view.nodes[port.node] for port in total.term.inputs)
    zeros = view.source(total.enter.inputs[0], IDENTITY_OPS)
    stack = total.exit
    while stack.op in IDENTITY_OPS or stack is total.exit:
        readers = list(view.read_by(stack.index))
        if len(readers) != 1:
            return None
        stack = view.nodes[readers[0]]
    ops = item.op, none.op, zeros.op, stack.op
    if ops != ("MatMul", "TensorListReserve", "ZerosLike", "TensorListStack"):
        return None
    return _Items(item, total, stack, zeros.inputs[0])


def _may_move(graph: PricedGraph, items: _Items) -> bool:
    """Return whether a product is alone with its list, in float32 and on a CPU."""
    view, (product, total, stack, _) = graph.view, items
    inside = product, total.term, total.add
    nodes = product, stack, *total
    return (
        is_float32(product)
        and not attr_of(product.proto, "transpose_a").b
        and not attr_of(total.term.proto, "resize_if_index_out_of_bounds").b
        and list(view.read_by(product.index)) == [total.term.index]
        and not any(view.control_readers(node.index) for node in inside)
        and view.frame(product.index) == view.frame(total.switch.index)
        and len({node.place for node in nodes}) == 1
        and graph.model(product).profile.kind == "cpu"
        and _item_shape(view, stack) is not None
        and graph.may_change(*nodes)
    )


def _item_shape(view: Graph, stack: Node) -> tuple[int, ...] | Port | None:
    """Return the shape of an item, or what holds it; None where a size may be open."""
    port = stack.inputs[1]
    node = view.source(port, IDENTITY_OPS)
    if node.op == "Const":
        sizes = tf.make_ndarray(node.proto.attr["value"].tensor)
        return tuple(sizes.tolist()) if sizes.ndim and (sizes > 0).all() else None
    if node.op in _PARTS:
        node = view.source(node.inputs[0], IDENTITY_OPS)
        return port if node.op in ("Shape", "ShapeN") else None
    return None


class _Weights(NamedTuple):
    """What a product multiplies by in each iteration of its loop.

    Attributes:
      port: it in front of the loop, or a list that holds it for each iteration.
      is_list: whether it is the list.
      shape: of the weights.
    """

    port: Port
    is_list: bool
    shape: tuple[int, ...]


def _weights(graph: PricedGraph, outside: Outside, product: Node) -> _Weights | None:
    """Return what a product multiplies by, if that is the same in each iteration."""
    view, port = graph.view, product.inputs[1]
    if entry := entry_of(view, port):
        port, is_list, one = entry.inputs[0], False, entry.inputs[0]
    else:
        kept = popped(view, port)
        each = pushed_to(view, view.source(kept, IDENTITY_OPS)) if kept else None
        if not kept or not each or not outside.has(each, product):
            return None
        port, is_list, one = kept, True, each
    shape = static(graph.shape(one))
    return _Weights(port, is_list, shape) if shape and all(shape) else None


class _ListedProduct:
    """A product of all iterations in place of one in each."""

    def __init__(
        self,
        graph: PricedGraph,
        items: _Items,
        weights: _Weights,
        rows: dict[Port, str],
    ) -> None:
        self._graph, self._items, self._weights = graph, items, weights
        self._rows, self._x = rows, items.product.inputs[0]
        self._flips = attr_of(items.product.proto, "transpose_b").b
        self._depth, self._columns = weights.shape[:: -1 if self._flips else 1]

    def seconds(self) -> float:
        """Return what one product of all steps saves; 0.0 where that is uncertain."""
        graph, product = self._graph, self._items.product
        frame = graph.view.frame(product.index)
        assert frame is not None
        batch = (graph.shape(self._x) or (None,))[0] or UNKNOWN_BATCH
        steps, item = round(frame.trip_count), (batch, self._columns)

        def product_seconds(count: int) -> float:
            """Return what so many rows take in the faster type, as a plan has it."""
            sizes = count, self._depth, self._columns
            return min(
                graph.product_seconds(product, sizes, dtype, transpose_b=self._flips)
                for dtype in ("float32", graph.low_dtype)
            )

        saved = product_seconds(batch) + graph.pass_seconds(product, "AddV2", item)
        spent = product_seconds(steps * batch)
        spent += graph.pass_seconds(product, "UnsortedSegmentSum", (steps, *item), ())
        kept = NODES_OF_LIST * NODE_SECONDS
        if self._x not in self._rows:
            rows = steps * batch, self._depth
            kept += NODES_OF_LIST * NODE_SECONDS
            spent += graph.pass_seconds(product, "TensorListConcatV2", rows, ())
        return graph.gain(product, saved, kept + spent / frame.trip_count)

    def write(self, new: NewNodes) -> None:
        """Multiply the rows of all iterations; add up those of the same item."""
        product, total, stack, like = self._items
        rows = rows_of(new, total, self._x, self._depth, self._rows)
        made = part_of(product, product.op, rows, self._weights_behind(new))
        for name in ("_output_shapes", "_class"):
            made.attr.pop(name, None)
        values = new.add(made, "products", (None, self._columns))
        numbers = self._numbers(new)
        operands = values, self._shape_of_items(new, numbers)
        made = new_node("Reshape", "", operands, T=DT_FLOAT, Tshape=DT_INT32)
        values = new.add(made, "items", new.graph.result_shape(stack))
        made = new_node("TensorListLength", inputs=[new.text(like)])
        count = new.add(made, "count", ())
        made = part_of(stack, "UnsortedSegmentSum", values, numbers, count)
        for name in ("Tindices", "Tnumsegments"):
            made.attr[name].type = DT_INT32
        new.replace(stack, made)
        self._leave_loop(new)

    def _numbers(self, new: NewNodes) -> str:
        """Return the number of the item that each iteration writes."""
        total = self._items.total
        kept, scalar = list_of(new, total, total.term.inputs[1], (), DT_INT32)
        types = {"element_dtype": DT_INT32, "num_elements": -1}
        stack = new_node("TensorListStack", "", (kept, scalar), **types)
        return new.add(stack, "numbers", (None,))

    def _weights_behind(self, new: NewNodes) -> str:
        """Return the weights behind the loop."""
        port, is_list, shape = self._weights
        if not is_list:
            return new.text(port)
        # Where no iteration was run, the first item is zeros, for no rows.
        one = new.add(new.constant(1, DT_INT32), "one", ())
        resize = new_node("TensorListResize", inputs=(new.text(port), one))
        first = new.add(new.constant(0, DT_INT32), "first", ())
        operands = new.add(resize, "kept", None), first, new.sizes(shape)
        item = new_node("TensorListGetItem", inputs=operands, element_dtype=DT_FLOAT)
        return new.add(item, "weights", shape)

    def _shape_of_items(self, new: NewNodes, numbers: str) -> str:
        """Return what holds the shape of as many items as there are numbers."""
        shape = _item_shape(new.graph.view, self._items.stack)
        if not isinstance(shape, Port):
            return new.sizes((-1, *(shape or ())))
        types = {"T": DT_INT32, "out_type": DT_INT32}
        made = new_node("Shape", inputs=[numbers], **types)
        axis = new.add(new.constant(0, DT_INT32), "axis", ())
        operands = new.add(made, "length", (1,)), new.text(shape), axis
        made = new_node("ConcatV2", inputs=operands, T=DT_INT32, Tidx=DT_INT32, N=2)
        return new.add(made, "shape", (3,))

    def _leave_loop(self, new: NewNodes) -> None:
        """Have the loop pass on a list that nobody reads, after all it waited for."""
        product, total, _, like = self._items
        new.edited.read(Reader(total.enter.index, 0), new.text(like))
        carried = new.text(Port(total.switch.index, 1))
        for node, text, awaited in (
            (total.term, carried, total.term.inputs),
            (total.add, total.term.name, ()),
            (product, new.text(self._x), product.inputs[1:]),
        ):
            names = (new.graph.view.nodes[port.node].name for port in awaited)
            same = part_of(node, "Identity", text, *(f"^{name}" for name in names))
            if node is not product:
                same.attr["T"].type = DT_VARIANT
            new.replace(node, same)
        new.shapes[product.name] = (new.graph.shape(self._x),)
