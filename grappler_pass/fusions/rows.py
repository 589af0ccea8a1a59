"""Rows: one kernel for a product of rows, its bias and its activation.

    Before   MatMul(x, w) --> Reshape --> BiasAdd --> activation
    After    _FusedMatMul(x, w, bias) with the activation --> Reshape

    Before   BatchMatMulV2(x, w) --> Reshape --> AddV2(bias) --> activation
    After    _FusedMatMul(Reshape(x), w, Reshape(bias)) with the activation --> Reshape

The first is a Dense layer on inputs of three and more axes, as Keras writes it, the
second an EinsumDense, as in an attention. Both multiply rows by one matrix.
TensorFlow's remapper does the same, but only of two matrices where no Reshape lies in
between, and GELU in 16 bits only if it finds all of its parts in 16 bits. Here the
kernel counts as one operation, which rounds once. Each value is computed from the same
ones as before.

Not done: where anything else reads what lies between. So the activation stays where its
gradient reads what it activates, as that of GELU does; where channels do not stay last;
on GPUs, where it was not measured. GELU is a kernel of oneDNN.

References: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from grappler_pass.eligibility.known_wrong import ends_in_channels
from grappler_pass.fusions.matching import (
    Found,
    Match,
    NewNodes,
    Pattern,
    PricedGraph,
    is_float32,
    part_of,
    scalar_of,
)
from grappler_pass.graph.shapes import static
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Node

_BATCHES = ("BatchMatMul", "BatchMatMulV2")
_ROWS = tuple(
    Pattern(text, BATCH=_BATCHES, SUM=("BiasAdd", "Add", "AddV2"))
    for text in (
        """
        product = MatMul(x, weights)
        values = Reshape(product, sizes)
        bias = BiasAdd(values, vector)
        """,
        """
        product = BATCH(x, weights)
        values = Reshape(product, sizes)
        bias = SUM(values, vector)
        """,
        """
        product = BATCH(x, weights)
        bias = SUM(product, vector)
        """,
    )
)
# Activations that a kernel of a product takes, in every build of TensorFlow.
_ACTIVATIONS = ("Relu", "Relu6", "Elu", "LeakyRelu")
# What GELU consists of, and its two forms by the names of the kernel.
_OPERATIONS: Mapping[str, Callable[..., float]] = {
    "AddV2": operator.add,
    "Erf": math.erf,
    "Erfc": math.erfc,
    "Mul": operator.mul,
    "Neg": operator.neg,
    "Pow": math.pow,
    "Square": lambda x: x * x,
    "Tanh": math.tanh,
}
_MOST_NODES = 12
# Enough to know one from any other: what is activated, and what that makes of it.
_SAMPLES = (-3.0, -1.1, -0.3, 0.4, 1.7)
_GELUS: Mapping[str, Sequence[float]] = {
    "GeluExact": [0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0))) for x in _SAMPLES],
    "GeluApproximate": [
        0.5 * x * (1.0 + math.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
        for x in _SAMPLES
    ],
}


def rows(graph: PricedGraph) -> Iterator[Match]:
    """Yield products of rows that one kernel computes with bias and activation.

    Of the bias and what activates it only the last is read elsewhere.
    """
    for product in graph.view.nodes:
        matches = (pattern.match(graph, "product", product) for pattern in _ROWS)
        found = next(filter(None, matches), None)
        if found is None or graph.model(product).profile.kind != "cpu":
            continue
        each = _Rows(graph, found)
        if each.is_known and graph.may_change(*found.nodes.values(), *each.activated):
            anchor = product.inputs[0]
            yield Match(product, each.seconds(), product, anchor, each.write)


class _Rows:
    """Rows that one matrix multiplies, with a bias of columns and what activates it.

    Attributes:
      activated: the bias, and the nodes that activate it.
      is_known: whether a kernel takes all of it.
    """

    def __init__(self, graph: PricedGraph, found: Found) -> None:
        self._graph, (self._ports, self._nodes) = graph, found
        self._product, bias = (found.nodes[name] for name in ("product", "bias"))
        self.activated, self._activation = _activated(graph, bias)
        self._is_batch = self._product.op in _BATCHES
        names = ("adj_x", "adj_y") if self._is_batch else ("transpose_a", "transpose_b")
        flips, self._flips = (attr_of(self._product.proto, n).b for n in names)
        weights = static(graph.shape(self._ports["weights"])) or ()
        self._weights = weights[::-1] if self._flips else weights
        self._shape = graph.result_shape(self._product) or ()
        # What the bias is added to.
        self._values = (
            graph.shape(self._ports.get("values", self._ports["product"])) or ()
        )
        vector = graph.shape(self._ports["vector"]) or (None,)
        if bias.op == "BiasAdd":
            vector = self._values[-1:]
        self.is_known = (
            bool(self._shape and self._shape[-1])
            and self._values[-len(vector) :] == vector
            and math.prod(size or 0 for size in vector) == self._shape[-1]
            and ends_in_channels(bias.proto)
            # oneDNN is not asked for these.
            and not flips
            and (not self._is_batch or self._has_one_matrix())
        )

    def _has_one_matrix(self) -> bool:
        """Return whether all of a batch is multiplied by the same weights."""
        is_one = len(self._weights) == 2 and len(self._shape) > 2
        # A result of more open sizes is not given its own again.
        return is_one and ("values" in self._nodes or self._values.count(None) < 2)

    def seconds(self) -> float:
        """Return what one kernel saves per step; 0.0 where that is uncertain."""
        graph, product = self._graph, self._product
        ops = "BiasAdd", *(node.op for node in self.activated[1:])
        passes = [graph.pass_seconds(product, op, self._shape) for op in ops]
        # All passes are saved but for the longest that activates.
        saved, spent = sum(passes), max(passes[1:], default=0.0)
        return graph.gain(product, saved, spent)

    def write(self, new: NewNodes) -> None:
        """Put one kernel in for all; what nothing reads any more takes no time."""
        product, ports = self._product, self._ports
        operands = [new.text(ports[name]) for name in ("x", "weights", "vector")]
        if self._is_batch:
            depth, columns = self._weights
            batch = static(self._shape[:-1])
            rows = None if batch is None else math.prod(batch)
            sizes = new.sizes((-1, depth))
            inputs = operands[0], sizes
            operands[0] = new.computed("Reshape", "rows", inputs, (rows, depth))
            operands[2] = new.shaped(ports["vector"], (columns,))
            new.shapes[product.name] = ((rows, columns),)
        made = part_of(product, "_FusedMatMul", *operands)
        made.attr.pop("_output_shapes", None)
        made.attr["transpose_b"].b = self._flips
        fused_ops = filter(None, ("BiasAdd", self._activation))
        made.attr["fused_ops"].list.s.extend(each.encode() for each in fused_ops)
        made.attr["num_args"].i = 1
        if self._activation == "LeakyRelu":
            alpha = attr_of(self.activated[-1].proto, "alpha")
            made.attr["leakyrelu_alpha"].f = alpha.f
        new.replace(product, made)
        if "values" in self._nodes:
            result = self._nodes["values"].name
        else:
            sizes = new.sizes(tuple(size or -1 for size in self._values))
            inputs = product.name, sizes
            result = new.computed("Reshape", "result", inputs, self._values)
        for node in self.activated:
            new.pass_on(node, result)


def _activated(graph: PricedGraph, bias: Node) -> tuple[tuple[Node, ...], str]:
    """Return a bias with what activates it, and how the kernel names that; "" if none.

    GELU is known by what it computes.
    """
    view = graph.view
    # By node what it is for each of the samples.
    values: dict[int, Sequence[float]] = {bias.index: _SAMPLES}
    nodes = [bias]
    while len(nodes) < _MOST_NODES:
        readers = (view.nodes[i] for node in nodes for i in view.read_by(node.index))
        following, computed = next(
            (
                (reader, computed)
                for reader in readers
                if reader.index not in values
                and is_float32(reader)
                and reader.place == bias.place
                and not reader.controls
                and not view.control_readers(reader.index)
                and (
                    (computed := _computed(graph, reader, values))
                    or reader.op in _ACTIVATIONS
                )
            ),
            (None, ()),
        )
        if following is None:
            break
        nodes.append(following)
        values[following.index] = computed
        # Of the nodes, those that others read.
        read = [n for n in nodes if not values.keys() >= set(view.read_by(n.index))]
        if not computed or not graph.onednn:
            is_activated = read == [following] and len(nodes) == 2 and not computed
            return (tuple(nodes), following.op) if is_activated else ((bias,), "")
        for name, expected in _GELUS.items():
            if read == [following] and np.allclose(computed, expected, atol=1e-5):
                return tuple(nodes), name
    return (bias,), ""


def _computed(
    graph: PricedGraph, node: Node, values: Mapping[int, Sequence[float]]
) -> Sequence[float]:
    """Return what a node makes of the samples and of scalars; nothing if not known."""
    operands: list[Sequence[float]] = []
    for port in node.inputs:
        scalar = scalar_of(graph.view, port)
        if port.node in values:
            operands.append(values[port.node])
        elif scalar is not None and graph.shape(port) == ():
            operands.append([scalar] * len(_SAMPLES))
    if node.op not in _OPERATIONS or len(operands) != len(node.inputs):
        return ()
    try:
        return [*map(_OPERATIONS[node.op], *operands)]
    except (ValueError, OverflowError):
        return ()
