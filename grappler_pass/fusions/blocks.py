"""Blocks: a loop's product with the same large weights is computed block by block.

Before   w --> Enter; in the loop: Split(BiasAdd(AddV2(y, MatMul(x, w)), b))
After    Split(w) --> Enter, ...; in the loop, for each part of Split(y) and Split(b):
         BiasAdd(AddV2(y_i, MatMul(x, w_i)), b_i)

That is the product of the state in an LSTM as Keras writes it; a block is a gate.

A kernel lays weights out again in each call. Where weights and their copy exceed a
core's cache, it reads them from memory. Blocks of columns stay in the cache, and
several threads may multiply by them. Each value is computed from the same ones.

Not done: where anything else reads the product or its sum, since joining what blocks
compute takes as long as they save; where the loop writes the weights; where products of
blocks are not priced as clearly faster, as on a CPU without AMX.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32

from grappler_pass.costs.calls import UNKNOWN_BATCH
from grappler_pass.fusions.matching import (
    Match,
    NewNodes,
    PricedGraph,
    is_float32,
    part_of,
)
from grappler_pass.fusions.recurrences import Outside
from grappler_pass.graph.editing import new_node
from grappler_pass.graph.op_table import ENTER_OPS
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Node, Port
from grappler_pass.graph.walks import reached
from grappler_pass.planning.prices import NODE_SECONDS

# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 1.1


def products(graph: PricedGraph) -> Iterator[Match]:
    """Yield the products of loops that are computed faster in blocks of columns."""
    outside = Outside(graph.view)
    for product in graph.view.nodes:
        if graph.view.frame(product.index) is None or product.op != "MatMul":
            continue
        x, weights = product.inputs
        if (
            is_float32(product)
            and not attr_of(product.proto, "transpose_a").b
            and graph.model(product).profile.kind == "cpu"
            and outside.has(weights, product)
            and not outside.has(x, product)
            and (enter := _enter(graph, product))
            and (split := _split(graph, product))
            and graph.may_change(product)
        ):
            blocks = _Blocks(graph, product, enter, split)
            anchor = enter.inputs[0]
            yield Match(product, blocks.seconds(), product, anchor, blocks.write)


class _Split(NamedTuple):
    """A split of the sum of a product, another tensor, and perhaps a bias."""

    add: Node
    biased: Node | None
    split: Node
    other: Port


def _enter(graph: PricedGraph, product: Node) -> Node | None:
    """Return by what the weights of a product enter its loop."""
    nodes, frame = graph.view.nodes, graph.view.frame(product.index)

    def before(i: int) -> list[int]:
        return [] if nodes[i].op in ENTER_OPS else nodes[i].sources

    above = reached([product.inputs[1].node], before)
    enters = (nodes[i] for i in above if nodes[i].op in ENTER_OPS)
    return next((e for e in enters if graph.view.frame(e.index) == frame), None)


def _split(graph: PricedGraph, product: Node) -> _Split | None:
    """Return the split of columns that alone reads a product's sum, if there is one."""
    chain = [product]
    for op in ("AddV2", "BiasAdd", "Split"):
        reader = _only_reader(graph, chain[-1])
        if reader is not None and reader.op == op:
            chain.append(reader)
    ops = [node.op for node in chain[1:]]
    if ops not in (["AddV2", "Split"], ["AddV2", "BiasAdd", "Split"]):
        return None
    _, add, *biased, split = chain
    axis = graph.view.nodes[split.inputs[0].node]
    other = next((port for port in add.inputs if port.node != product.index), None)
    if (
        other is None
        or axis.op != "Const"
        or int(tf.make_ndarray(axis.proto.attr["value"].tensor)) not in (1, -1)
        or graph.shape(other) is None
        or graph.shape(other) != graph.result_shape(product)
        or len({node.place for node in chain}) > 1
        or not graph.may_change(*chain)
    ):
        return None
    return _Split(add, biased[0] if biased else None, split, other)


def _only_reader(graph: PricedGraph, node: Node) -> Node | None:
    """Return the one node that reads a result, if none waits for it."""
    view = graph.view
    readers = {reader.node for reader in view.readers(Port(node.index, 0))}
    is_alone = len(readers) == 1 and not view.control_readers(node.index)
    return view.nodes[readers.pop()] if is_alone else None


class _Blocks:
    """A product with a block of its weights' columns for each part of its sum."""

    def __init__(
        self, graph: PricedGraph, product: Node, enter: Node, split: _Split
    ) -> None:
        self._graph, self._product, self._enter = graph, product, enter
        self._split = split
        self._count = int(split.split.proto.attr["num_split"].i)
        self._flips = attr_of(product.proto, "transpose_b").b
        weights = graph.shape(product.inputs[1]) or (None, None)
        depth, columns = weights[:: -1 if self._flips else 1]
        self._depth, self._columns = depth or 0, columns or 0
        self._rows = (graph.result_shape(product) or (None,))[0]

    def seconds(self) -> float:
        """Return what blocks save per step; 0.0 where that is uncertain."""
        graph, product, count = self._graph, self._product, self._count
        frame = graph.view.frame(product.index)
        if not self._depth or not self._columns or self._columns % count or not frame:
            return 0.0
        rows = self._rows or UNKNOWN_BATCH

        def product_seconds(dtype: str, columns: int) -> float:
            sizes = rows, self._depth, columns
            return graph.product_seconds(product, sizes, dtype, transpose_b=self._flips)

        # In the faster type, as a plan has it.
        whole = {
            d: product_seconds(d, self._columns) for d in ("float32", graph.low_dtype)
        }
        dtype = min(whole, key=whole.__getitem__)
        spent = count * product_seconds(dtype, self._columns // count)
        # Sums and casts of parts, each a node.
        spent += 3 * (count - 1) * NODE_SECONDS
        weights = self._depth, self._columns
        once = graph.pass_seconds(product, "Split", weights, ())
        spent += once / frame.trip_count
        return graph.gain(product, whole[dtype], spent, _LEAST_RATIO)

    def write(self, new: NewNodes) -> None:
        """Split the weights in front of the loop; multiply by each block in it."""
        product, width = self._product, self._columns // self._count
        parts = []
        for entered in self._entered(new):
            part = part_of(product, "MatMul", new.text(product.inputs[0]), entered)
            part.attr.pop("_output_shapes", None)
            parts.append(new.add(part, "part", (self._rows, width)))
        self._add_to_each(new, parts)

    def _entered(self, new: NewNodes) -> Iterator[str]:
        """Yield the blocks of the weights as they enter the loop."""
        width = self._columns // self._count
        shape = (width, self._depth) if self._flips else (self._depth, width)
        axis = new.constant(int(not self._flips), DT_INT32, ())
        weights = Outside(new.graph.view).text(new, self._product.inputs[1])
        operands = new.add(axis, "axis", ()), weights
        split = new_node("Split", inputs=operands, T=DT_FLOAT, num_split=self._count)
        blocks = new.add(split, "blocks", None)
        new.shapes[blocks] = (shape,) * self._count
        given = self._enter.proto.attr
        attrs = {
            "T": DT_FLOAT,
            "is_constant": True,
            "frame_name": given["frame_name"].s,
            "parallel_iterations": given["parallel_iterations"].i,
        }
        for number in range(self._count):
            block = f"{blocks}:{number}" if number else blocks
            yield new.add(new_node("Enter", inputs=[block], **attrs), "enter", shape)

    def _add_to_each(self, new: NewNodes, parts: Sequence[str]) -> None:
        """Split what the product was added to, and add its parts to that."""
        view, width = new.graph.view, self._columns // self._count
        add, biased, split, other = self._split
        biases = ""
        if biased:
            axis = new.constant(0, DT_INT32, (), anchor=other)
            operands = new.add(axis, "axis", ()), new.text(biased.inputs[1])
            made = new_node("Split", inputs=operands, T=DT_FLOAT, num_split=self._count)
            biases = new.add(made, "biases", None)
            new.shapes[biases] = ((width,),) * self._count
        for number, part in enumerate(parts):
            port = Port(split.index, number)
            made = part_of(add, "AddV2", new.text(port), part)
            made.attr.pop("_output_shapes", None)
            total = new.add(made, "sum", (self._rows, width))
            if biased:
                bias = f"{biases}:{number}" if number else biases
                made = part_of(biased, "BiasAdd", total, bias)
                made.attr.pop("_output_shapes", None)
                total = new.add(made, "biased", (self._rows, width))
            for reader in view.readers(port):
                new.edited.read(reader, total)
        new.pass_on(add, new.text(other))
        if biased:
            new.pass_on(biased, add.name)
        new.pass_on(self._product, new.text(self._product.inputs[0]))
        new.shapes[self._product.name] = (new.graph.shape(self._product.inputs[0]),)
