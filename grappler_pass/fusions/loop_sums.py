"""Sums of loops: what iterations multiply and add up is multiplied and added at once.

Before   in the loop: total = AddN(total, MatMul(a, b, transpose_a=True))
After    in the loop: rows_a = PushBack(rows_a, a); rows_b = PushBack(rows_b, b)
         behind it: AddV2(total, MatMul(rows_a, rows_b, transpose_a=True))

That is the gradient of weights that a loop has multiplied by, as for the inputs and for
the state of a recurrent layer: one product sums over the rows of all steps, where each
step read and wrote a sum as large as the weights. Behind a product, the gradient of a
bias is summed over the same rows. Sums are float32 in another order.

The product stays float32 where its rows are in 16 bits. A loop adds up products that
are rounded one by one, which averages their errors out. One rounding of the sum is up
to 4.6 times as far off as casts by hand, where all terms are alike.

A loop may run as often as it likes: rows are those of the iterations that were run.

Not done: where anything else reads the sum in the loop, or a single product; where the
size of the sum is not known; where products in 16 bits would be faster than this one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from grappler_pass.annotations import FLOAT32, OWN
from grappler_pass.costs.calls import UNKNOWN_BATCH
from grappler_pass.fusions.loop_rows import NODES_OF_LIST, Total, rows_of, total_of
from grappler_pass.fusions.matching import (
    Match,
    NewNodes,
    PricedGraph,
    is_float32,
    part_of,
)
from grappler_pass.graph.op_table import ADDITION_OPS, IDENTITY_OPS
from grappler_pass.graph.shapes import static, variable_shape
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Port
from grappler_pass.planning.prices import NODE_SECONDS

_IN_FLOAT32 = f"{OWN}it sums what a loop added up in float32".encode()


def sums(graph: PricedGraph) -> Iterator[Match]:
    """Yield sums of products that can be computed behind their loop; then of biases."""
    view = graph.view
    totals = [
        total
        for add in view.nodes
        if add.op in ADDITION_OPS and view.frame(add.index) is not None
        if (total := total_of(view, add)) and _may_move(graph, total)
    ]
    # Rows of all iterations by what they are in each.
    rows: dict[Port, str] = {}
    kept: set[Port] = set()
    for total in totals:
        if total.term.op == "MatMul":
            each = _Sum(graph, total, rows)
            seconds = each.seconds()
            kept.update(total.term.inputs if seconds > 0.0 else ())
            yield Match(
                total.term, seconds, total.exit, total.enter.inputs[0], each.write
            )
    for total in totals:
        # Only a product's operands are surely rows.
        if total.term.op == "BiasAddGrad" and total.term.inputs[0] in kept:
            each = _Sum(graph, total, rows)
            anchor = total.enter.inputs[0]
            yield Match(total.term, each.seconds(), total.exit, anchor, each.write)


def _size(graph: PricedGraph, total: Total) -> tuple[int, ...] | None:
    """Return the shape of a sum by that of what it begins with, such as zeros."""
    begin = total.enter.inputs[0]
    node = graph.view.nodes[begin.node]
    if node.op == "Fill":
        sizes = graph.view.nodes[node.inputs[0].node]
        if sizes.op == "VariableShape":
            handle = graph.view.source(sizes.inputs[0], IDENTITY_OPS)
            return static(variable_shape(handle.proto))
    return static(graph.shape(begin))


def _may_move(graph: PricedGraph, total: Total) -> bool:
    """Return whether a sum is one of products, or of a bias' gradients, in float32."""
    view, term = graph.view, total.term
    is_product = term.op == "MatMul" and [
        attr_of(term.proto, name).b for name in ("transpose_a", "transpose_b")
    ] == [True, False]
    shape = _size(graph, total)
    return (
        (is_product or term.op == "BiasAddGrad")
        and shape is not None
        and len(shape) == len(term.inputs)
        and all(shape)
        and all(is_float32(node) for node in (term, total.add))
        and view.frame(term.index) == view.frame(total.switch.index)
        and len({node.place for node in total}) == 1
        and not any(view.control_readers(node.index) for node in (term, total.add))
        and graph.may_change(*total)
    )


class _Sum:
    """A sum of products, or of a bias' gradients, that is taken behind its loop."""

    def __init__(self, graph: PricedGraph, total: Total, rows: dict[Port, str]) -> None:
        self._graph, self._total, self._rows = graph, total, rows
        self._shape = _size(graph, total) or ()

    def seconds(self) -> float:
        """Return what one sum of all rows saves; 0.0 where that is uncertain."""
        graph, term, shape = self._graph, self._total.term, self._shape
        frame = graph.view.frame(term.index)
        assert frame is not None
        batch = (graph.shape(term.inputs[0]) or (None,))[0] or UNKNOWN_BATCH
        rows = batch * round(frame.trip_count)
        added = graph.pass_seconds(term, "AddV2", shape)
        if term.op == "BiasAddGrad":
            # Its rows are kept for a product.
            saved, spent = (
                graph.pass_seconds(term, term.op, (count, *shape), writes=False)
                for count in (batch, rows)
            )
            return graph.gain(term, saved + added, (spent + added) / frame.trip_count)

        def product(count: int, dtype: str) -> float:
            sizes = shape[0], count, shape[1]
            return graph.product_seconds(term, sizes, dtype, transpose_a=True)

        # In the loop they may be in 16 bits, and are cast for a sum in float32.
        low, elements = graph.low_dtype, math.prod(shape)
        cast = graph.model(term).cast_price(elements, low, "float32")
        in_low = product(batch, low) + cast.seconds + NODE_SECONDS
        saved = min(product(batch, "float32"), in_low)
        spent = product(rows, "float32")
        for columns in shape:
            spent += graph.pass_seconds(term, "TensorListConcatV2", (rows, columns), ())
        kept = len(shape) * NODES_OF_LIST * NODE_SECONDS
        return graph.gain(
            term, saved + added, kept + (spent + added) / frame.trip_count
        )

    def write(self, new: NewNodes) -> None:
        """Keep the rows of all iterations; what read the sum reads that of all rows."""
        add, term, _, switch, last = self._total
        rows = [
            rows_of(new, self._total, port, columns, self._rows)
            for port, columns in zip(term.inputs, self._shape, strict=True)
        ]
        summed = part_of(term, term.op, *rows)
        summed.attr.pop("_output_shapes", None)
        summed.attr.pop("_class", None)
        summed.attr[FLOAT32].s = _IN_FLOAT32
        product = new.add(summed, "rows", self._shape)
        both = (last.name, product)
        total = new.computed("AddV2", "total", both, self._shape)
        for reader in new.graph.view.readers(Port(last.index, 0)):
            new.edited.read(reader, total)
        # The loop passes on the sum that it was given, after all that it waited for.
        passed = part_of(add, "Identity", new.text(Port(switch.index, 1)))
        passed.input.append(f"^{term.name}")
        new.replace(add, passed)
        operands = [new.text(port) for port in term.inputs]
        passed = part_of(term, "Identity", operands[0])
        awaited = (new.graph.view.nodes[port.node].name for port in term.inputs[1:])
        passed.input.extend(f"^{name}" for name in awaited)
        new.replace(term, passed)
        new.shapes[term.name] = (new.graph.shape(term.inputs[0]),)
