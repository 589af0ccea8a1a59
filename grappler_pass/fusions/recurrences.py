"""Recurrences: what loops multiply step by step, and need not, is multiplied at once.

Before   items = TensorListFromTensor(x)
         in the loop: MatMul(TensorListGetItem(items, t), w) --> BiasAdd(b) --> ...
After    rows = TensorListSplit(BiasAdd(MatMul(TensorListConcat(items), w), b))
         in the loop: TensorListGetItem(rows, t) --> ...

That is the product of the inputs in an LSTM, a GRU or a SimpleRNN as Keras writes it,
and in loops that are written like it. One product of all steps reads the weights once.
Each value is computed from the same ones as before, and which of them a step reads is
as the loop says: it may end early, not run at all, or read its inputs in any order.

What is computed in front of the loop must be the same in each iteration: what enters
the loop and is not changed there, variables that the loop does not write, and parts of
these.

Not done: where the loop writes the weights; for inputs that the loop computes; where
the number of inputs or outputs per row is not known.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32, DT_INT64

from grappler_pass.costs.calls import UNKNOWN_BATCH
from grappler_pass.eligibility.fused_ops import FusedPart, parts_of
from grappler_pass.eligibility.reads import reads_unwritten_in_loops
from grappler_pass.fusions.matching import (
    Match,
    NewNodes,
    PricedGraph,
    is_float32,
    part_of,
    with_inputs,
)
from grappler_pass.graph.editing import new_node
from grappler_pass.graph.frames import Frame, is_unchanged
from grappler_pass.graph.op_table import (
    CONSTANT_OPS,
    ENTER_OPS,
    IDENTITY_OPS,
    INPUT_OPS,
    ROOTS,
    SWITCH_OPS,
)
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.graph.walks import reached

_PRODUCT = (FusedPart("MatMul", (0, 1)),)
# They take parts of a tensor, or turn it: what is computed of weights in each step.
_PARTS = frozenset(
    """Cast ExpandDims Reshape Slice Split SplitV Squeeze StridedSlice Transpose
    Unpack""".split()
)


def products(graph: PricedGraph) -> Iterator[Match]:
    """Yield the products of a loop's inputs that can be computed in front of it."""
    view = graph.view
    outside = Outside(view)
    for product in view.nodes:
        frame = view.frame(product.index)
        if frame is None or ROOTS.get(product.op, product.op) != "MatMul":
            continue
        item = view.source(product.inputs[0], IDENTITY_OPS)
        if item.op != "TensorListGetItem" or not is_float32(product):
            continue
        recurrence = _InputProduct(graph, outside, product, item)
        if recurrence.is_known and graph.may_change(product):
            seconds = recurrence.seconds(frame)
            yield Match(product, seconds, product, recurrence.anchor, recurrence.write)


def entry_of(view: Graph, port: Port) -> Node | None:
    """Return by what a tensor enters its loop, if it is the same in each iteration.

    It enters as a constant, or each iteration passes it on to the next.
    """
    node = view.source(port, IDENTITY_OPS)
    if node.op in SWITCH_OPS:
        merge = view.nodes[node.inputs[0].node]
        is_same = is_unchanged(view.nodes, merge)
        return view.nodes[merge.inputs[0].node] if is_same else None
    return node if node.op in ENTER_OPS else None


class Outside:
    """What is the same in each iteration of a loop, and how to compute it before it."""

    def __init__(self, view: Graph) -> None:
        """Look at a graph."""
        self._view = view

    @functools.cached_property
    def _reads(self) -> frozenset[int]:
        return reads_unwritten_in_loops(self._view)

    def has(self, port: Port, near: Node) -> bool:
        """Return whether a tensor of a loop can be computed before it, near a node."""
        if entry_of(self._view, port):
            return True
        node = self._view.nodes[port.node]
        is_same = node.op in CONSTANT_OPS | IDENTITY_OPS | _PARTS
        if node.op == "ReadVariableOp":
            is_same = node.index in self._reads
        is_there = is_same and node.place == near.place
        return is_there and all(self.has(each, near) for each in node.inputs)

    def text(self, new: NewNodes, port: Port) -> str:
        """Return a tensor of a loop in front of it, by the name of its output there."""
        if entry := entry_of(self._view, port):
            return self._view.text(entry.inputs[0])
        node = self._view.nodes[port.node]
        made = with_inputs(node, {})
        made.input[:] = [self.text(new, each) for each in node.inputs]
        awaited: Iterable[int] = () if node.inputs else (new.match.anchor.node,)
        if node.op == "ReadVariableOp":
            awaited = self._awaited(node)
        names = sorted({self._view.nodes[i].name for i in awaited})
        made.input.extend(f"^{name}" for name in names)
        name = new.add(made, "outside", new.graph.shape(port))
        return f"{name}:{port.output}" if port.output else name

    def _awaited(self, read: Node) -> Iterator[int]:
        """Yield what a read in a loop waits for that is in front of the loop."""
        nodes, frame = self._view.nodes, self._view.frame(read.index)

        def before(i: int) -> list[int]:
            return [] if nodes[i].op in ENTER_OPS else nodes[i].sources

        for i in reached([read.index], before):
            if nodes[i].op in ENTER_OPS and self._view.frame(i) == frame:
                for source in nodes[i].sources:
                    if nodes[source].op not in CONSTANT_OPS | INPUT_OPS:
                        yield source


class _InputProduct:
    """A product of what a loop reads from a list with what each iteration has the same.

    Attributes:
      anchor: the list that the loop reads.
      is_known: whether the product can be computed in front of the loop.
    """

    def __init__(
        self, graph: PricedGraph, outside: Outside, product: Node, item: Node
    ) -> None:
        self._graph, self._outside = graph, outside
        self._product, self._item = product, item
        view = graph.view
        self._enter = entry_of(view, item.inputs[0]) or item
        self.anchor = self._enter.inputs[0]
        source = view.nodes[self.anchor.node]
        self._x = source.inputs[0]
        is_plain = product.op == "MatMul"
        self._parts = _PRODUCT if is_plain else parts_of(product.proto)
        weights = graph.shape(product.inputs[1]) or (None, None)
        flips = attr_of(product.proto, "transpose_b").b
        depth, columns = weights[::-1] if flips else weights
        self._depth, self._columns = depth or 0, columns or 0
        self.is_known = (
            self._enter.op in ENTER_OPS
            and source.op == "TensorListFromTensor"
            and len({each.place for each in (product, item, source)}) == 1
            and not attr_of(product.proto, "transpose_a").b
            and bool(depth and columns and self._parts)
            and outside.has(product.inputs[1], product)
        )

    def seconds(self, frame: Frame) -> float:
        """Return what one product of all steps saves; 0.0 where that is uncertain."""
        graph, product = self._graph, self._product
        shape = graph.shape(self._x) or ()
        steps, batch = shape[:2] if len(shape) == 3 else (None, None)
        steps, batch = steps or round(frame.trip_count), batch or UNKNOWN_BATCH
        rows, flips = steps * batch, attr_of(product.proto, "transpose_b").b
        sizes = self._depth, self._columns

        def product_seconds(count: int) -> float:
            """Return what so many rows take in the faster type, as a plan has it."""
            return min(
                graph.product_seconds(
                    product, (count, *sizes), dtype, transpose_b=flips
                )
                for dtype in ("float32", graph.low_dtype)
            )

        spent = product_seconds(rows)
        for op, size in zip(("Concat", "Split"), sizes, strict=True):
            spent += graph.pass_seconds(product, f"TensorList{op}", (rows, size), ())
        # A step reads its rows in place of the product: both are one node.
        saved = product_seconds(batch)
        return graph.gain(product, saved, spent / frame.trip_count)

    def write(self, new: NewNodes) -> None:
        """Multiply all rows at once; the product reads its rows of the result."""
        outside, product, item = self._outside, self._product, self._item
        left, anchor = list(self._parts), item.inputs[1]

        def sizes(columns: int, **where: Port) -> str:
            value = new.constant((-1, columns), DT_INT32, **where)
            return new.add(value, "shape", (2,))

        lengths = new.add(new.constant((), DT_INT64, (0,)), "lengths", (0,))
        operands = new.text(self.anchor), sizes(self._depth), lengths
        types = {"element_dtype": DT_FLOAT, "shape_type": DT_INT32}
        rows_of_all = new_node("TensorListConcatV2", inputs=operands, **types)
        items = rows = new.add(rows_of_all, "inputs", (None, self._depth))
        while left and all(outside.has(p, product) for p in self._operands(left[0])):
            part = left.pop(0)
            others = [outside.text(new, port) for port in self._operands(part)]
            made = self._part(part, rows, *others)
            rows = new.add(made, "rows", (None, self._columns))
        operands = rows, sizes(self._columns), f"{items}:1"
        steps = new_node("TensorListSplit", inputs=operands, **types)
        enter = with_inputs(self._enter, {})
        enter.input[:] = [new.add(steps, "steps", None)]
        enter.attr["is_constant"].b = True
        inside = new.add(enter, "enter", None)
        operands = inside, new.text(anchor), sizes(self._columns, anchor=anchor)
        last = new_node(
            "TensorListGetItem", "", operands, product.device, element_dtype=DT_FLOAT
        )
        for part in left:
            value = new.add(last, "step", new.graph.result_shape(product))
            others = [new.text(port) for port in self._operands(part)]
            last = self._part(part, value, *others)
        new.replace(product, last)

    def _operands(self, part: FusedPart) -> Sequence[Port]:
        """Return what a part reads beside the part before it, or beside the inputs."""
        return [self._product.inputs[number] for number in part.inputs if number]

    def _part(self, part: FusedPart, *inputs: str) -> NodeDef:
        """Return the node of a part, for as many rows as it is given."""
        flat = [
            len(self._graph.shape(each) or ()) == 1 for each in self._operands(part)
        ]
        op = "AddV2" if part.op == "BiasAdd" and not all(flat) else part.op
        made = part_of(self._product, op, *inputs)
        made.attr.pop("_output_shapes", None)
        return made
