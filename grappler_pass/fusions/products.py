"""Products: scales of channels, and what transposes or adds up their results.

Fold the scales of a product's channels into its weights, as in inference:

    Before   product(x, w) --> Mul(scale) --> AddV2(shift) --> activation
    After    product(x, Mul(w, scale)) --> BiasAdd(shift) --> activation

That is a BatchNormalization with its moving statistics, as Keras 3 writes it. Two
passes over the product's result become one over its weights, and TensorFlow's remapper,
which runs again, makes one kernel of the product, its bias and the activation.

Of a sum with a shortcut, TensorFlow's arithmetic optimizer has added the shift last:

    Before   product(x, w) --> Mul(scale) --> AddN(shortcut) --> AddV2(shift)
    After    product(x, Mul(w, scale)) --> BiasAdd(shift) --> AddV2(shortcut)

That is one kernel, too, with the activation behind it.

Not done: where anything else reads the product, as the statistics of a batch do in
training; where channels do not come last; behind an activation; where the weights are
so large that scaling them saves little.

Multiply the other way round where the result is transposed:

    Before   BatchMatMulV2(a, b) --> Transpose of the last two axes
    After    BatchMatMulV2(b, a), each adjoint where the other was not

With dropout Keras 3 writes scores of attention so: keys times queries, transposed.
TensorFlow's arithmetic optimizer folds transposes of what a product reads, not of its
result. Each value is computed from the same ones as before.

Not done: where anything else reads the product.

Sum over several rows of a batch within a product:

    Before   BatchMatMulV2(a, b), adjoint in a --> Sum over the batch
    After    BatchMatMulV2(Reshape(a), Reshape(b)) of 8 in one --> Sum over what is left

That is the gradient of weights that a whole batch is multiplied by, as an EinsumDense
does. An eighth of the partial products are written and read. A product in 16 bits
rounds its result. Eight in one round as one, where eight roundings would average out by
the root of eight: less than the factor of three that casts by hand are allowed.

Not done: where anything else reads the products, or their number is open or has no
divisor from 2 to 8.

References: tensorflow/core/grappler/optimizers/arithmetic_optimizer.cc.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.types_pb2 import DT_INT32

from grappler_pass.annotations import SCALE
from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.known_wrong import ends_in_channels
from grappler_pass.fusions.matching import (
    Found,
    Match,
    NewNodes,
    Pattern,
    PricedGraph,
    controls,
    part_of,
)
from grappler_pass.graph.op_table import ADDITION_OPS, ROOTS
from grappler_pass.graph.shapes import Shape, static
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Node
from grappler_pass.planning.prices import NODE_SECONDS

_PRODUCTS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul")
_FUSED_PRODUCTS = tuple(op for op, root in ROOTS.items() if root in _PRODUCTS)
# A product whose bias is in its kernel, one with a bias of its own, and one without;
# behind each a scale with a shift, with a shift behind a shortcut, and alone.
_SCALED_PRODUCTS = tuple(
    Pattern(
        f"{product}\nmul = Mul({biased}, scale)\n{shift}",
        PRODUCT=_PRODUCTS,
        FUSED=_FUSED_PRODUCTS,
        ADDITION=ADDITION_OPS,
    )
    for product, biased in (
        ("product = FUSED(x, weights, bias)", "product"),
        ("product = PRODUCT(x, weights)\nbetween = BiasAdd(product, bias)", "between"),
        ("product = PRODUCT(x, weights)", "product"),
    )
    for shift in (
        "add = Add|AddV2(mul, shift)",
        "shortcut = ADDITION(mul, other)\nadd = Add|AddV2(shortcut, shift)",
        "",
    )
)
# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 2.0
# What runs in each call to find scaled weights and a bias that are kept.
_NODES_OF_KEPT = 4
_TRANSPOSED = Pattern(
    """
    product = BatchMatMul|BatchMatMulV2(a, b)
    transposed = Transpose(product, axes)
    """
)
_SUMMED = Pattern(
    """
    product = BatchMatMul|BatchMatMulV2(a, b)
    total = Sum(product, axes)
    """
)
# Of which the roundings may become one.
_MOST_IN_ONE = 8


def folds(graph: PricedGraph) -> Iterator[Match]:
    """Yield what can be folded, a shift of two products once."""
    if any(SCALE in node.proto.attr for node in graph.view.nodes):
        return
    shifts: set[str] = set()
    for product in graph.view.nodes:
        if product.op not in (*_PRODUCTS, *_FUSED_PRODUCTS):
            continue
        found = [f for p in _SCALED_PRODUCTS if (f := _scaled(graph, p, product))]
        if not found or not graph.may_change(*found[0].nodes.values()):
            continue
        add = found[0].nodes.get("add")
        each = found[-1] if add and add.name in shifts else found[0]
        shifts |= {add.name} if add else set()
        fold = _Fold(graph, each)
        weights = product.inputs[1]
        # In the frame of a loop, if the product is in one.
        yield Match(product, fold.seconds(), product, weights, fold.write)


def _scaled(graph: PricedGraph, pattern: Pattern, product: Node) -> Found | None:
    """Return a product whose channels a pattern finds scaled, if it may be folded."""
    found = pattern.match(graph, "product", product)
    if found is None or not ends_in_channels(product.proto):
        return None
    ports, nodes = found
    parts = parts_of(product.proto)
    if product.op in _FUSED_PRODUCTS and [p.op for p in parts[1:]] != ["BiasAdd"]:
        return None
    shape, weights = graph.result_shape(product), graph.shape(ports["weights"])
    if not shape or not shape[-1] or static(weights) is None:
        return None
    vectors = (ports[name] for name in ("bias", "scale", "shift") if name in ports)
    if not all(graph.is_per_channel(p, shape[-1], len(weights or ())) for p in vectors):
        return None
    scaled = graph.result_shape(nodes["mul"])
    is_alike = "other" not in ports or (
        scaled and graph.shape(ports["other"]) == scaled
    )
    return found if is_alike else None


class _Fold:
    """A product, the scales of its channels, and what is added to them."""

    def __init__(self, graph: PricedGraph, found: Found) -> None:
        self._graph = graph
        self._ports, self._nodes = found
        self._product = product = found.nodes["product"]
        self._op = ROOTS.get(product.op, product.op)
        self._weights = static(graph.shape(found.ports["weights"])) or ()
        self._vector = ((graph.result_shape(product) or ())[-1] or 0,)

    def seconds(self) -> float:
        """Return what a fold saves per step; 0.0 where that is uncertain."""
        graph, ports, product = self._graph, self._ports, self._product

        def takes(op: str, shape: Shape | None, *operands: str) -> float:
            """Return 0.0 for what is computed once, of constants."""
            nodes = [graph.view.nodes[ports[o].node] for o in operands if o in ports]
            if nodes and all(node.op == "Const" for node in nodes):
                return 0.0
            return graph.pass_seconds(product, op, shape, self._vector)

        result = graph.result_shape(product)
        # A bias that is added by a kernel of its own takes as long as a sum.
        fuses = graph.model(product).profile.kind == "cpu"
        has_shift = "shift" in ports
        saved = takes("Mul", result)
        saved += takes("AddV2", result) if has_shift and fuses else 0.0
        spent = takes("Mul", self._weights, "weights", "scale")
        if "bias" in ports:
            spent += takes("Mul", self._vector, "bias", "scale")
            if has_shift:
                spent += takes("AddV2", self._vector, "bias", "scale", "shift")
        if graph.kept >= {ports["weights"], ports["scale"]}:
            spent = min(spent, _NODES_OF_KEPT * NODE_SECONDS)
        return graph.gain(product, saved, spent, _LEAST_RATIO)

    def write(self, new: NewNodes) -> None:
        """Scale the weights; what multiplied now passes the product on."""
        ports, nodes, product = self._ports, self._nodes, self._product
        # How scales broadcast to the weights.
        shape: tuple[int, ...] = self._vector
        if self._op == "DepthwiseConv2dNative":
            shape = self._weights[-2:]
        elif self._op == "MatMul" and attr_of(product.proto, "transpose_b").b:
            shape = (*shape, 1)
        scale = new.shaped(ports["scale"], shape)
        operands = new.text(ports["weights"]), scale
        scaled = new.computed("Mul", "weights", operands, self._weights)
        x = new.text(ports["x"])
        new.replace(product, part_of(product, self._op, x, scaled))
        behind = (nodes.get(name) for name in ("between", "mul", "add"))
        *others, last = filter(None, behind)
        if "shortcut" in nodes:
            terms = nodes["mul"].name, new.text(ports["other"])
            new.replace(last, part_of(last, "AddV2", *terms))
            new.pass_on(nodes["shortcut"], nodes["mul"].name)
            *others, last = others
        for node in others:
            new.pass_on(node, product.name)
        shift = new.shaped(ports["shift"], self._vector) if "shift" in ports else ""
        if "bias" in ports:
            factors = [
                new.shaped(ports[name], self._vector) for name in ("bias", "scale")
            ]
            bias = new.computed("Mul", "bias", factors, self._vector)
            if shift:
                bias = new.computed("AddV2", "shift", (bias, shift), self._vector)
            shift = bias
        if not shift:
            new.pass_on(last, product.name)
            return
        added = part_of(last, "BiasAdd", product.name, shift)
        added.attr["data_format"].s = b"NHWC"
        own = controls(last)
        awaited = {text for node in others for text in controls(node)}
        added.input.extend([*own, *sorted(awaited.difference(own))])
        new.replace(last, added)


def transposed_products(graph: PricedGraph) -> Iterator[Match]:
    """Yield batches of products whose results are only read transposed."""
    for product in graph.view.nodes:
        found = _TRANSPOSED.match(graph, "product", product)
        shape = graph.result_shape(product)
        if found is None or not shape:
            continue
        rank, order = len(shape), _axes(graph, found)
        if order != [*range(rank - 2), rank - 1, rank - 2]:
            continue
        if not graph.may_change(*found.nodes.values()):
            continue
        saved = graph.pass_seconds(product, "Transpose", shape, (rank,))
        seconds = graph.gain(product, saved, NODE_SECONDS)
        write = functools.partial(_multiply_the_other_way, found)
        yield Match(product, seconds, product, product.inputs[0], write)


def _multiply_the_other_way(found: Found, new: NewNodes) -> None:
    """Compute what the transpose of a product is; the transpose passes it on."""
    product, transposed = found.nodes["product"], found.nodes["transposed"]
    a, b = (new.text(found.ports[name]) for name in "ab")
    made = part_of(product, product.op, b, a)
    adjoint = [not attr_of(product.proto, name).b for name in ("adj_y", "adj_x")]
    made.attr["adj_x"].b, made.attr["adj_y"].b = adjoint
    new.replace(product, made)
    new.shapes[product.name] = (new.graph.result_shape(transposed),)
    new.pass_on(transposed, product.name)


def summed_products(graph: PricedGraph) -> Iterator[Match]:
    """Yield batches of products that are added up, of which a few become one."""
    for product in graph.view.nodes:
        found = _SUMMED.match(graph, "product", product)
        shape = static(graph.result_shape(product))
        if found is None or not shape or not graph.may_change(*found.nodes.values()):
            continue
        batch = shape[:-2]
        operands = [static(graph.shape(found.ports[name])) or () for name in "ab"]
        keeps_axes = attr_of(found.nodes["total"].proto, "keep_dims").b
        adjoint = [attr_of(product.proto, name).b for name in ("adj_x", "adj_y")]
        if (
            _axes(graph, found) != [*range(len(batch))]
            or keeps_axes
            or adjoint != [True, False]
            or any(operand[:-2] != batch for operand in operands)
        ):
            continue
        in_one = max(n for n in range(1, _MOST_IN_ONE + 1) if math.prod(batch) % n == 0)
        # Of these passes, so many parts are saved.
        sums = graph.pass_seconds(product, "Sum", shape, (len(batch),), writes=False)
        saved = sums * (1.0 - 1.0 / in_one)
        seconds = graph.gain(product, saved, 2.0 * NODE_SECONDS)
        write = functools.partial(_sum_within, found, math.prod(batch) // in_one)
        yield Match(product, seconds, product, product.inputs[0], write)


def _axes(graph: PricedGraph, found: Found) -> list[int] | None:
    """Return the constant axes of what a pattern finds behind a product."""
    axes = graph.view.nodes[found.ports["axes"].node]
    if axes.op != "Const":
        return None
    value = tf.make_ndarray(axes.proto.attr["value"].tensor)
    return [int(axis) for axis in np.ravel(value)]


def _sum_within(found: Found, count: int, new: NewNodes) -> None:
    """Let so many products sum up what the batch of them did."""
    product, total = found.nodes["product"], found.nodes["total"]
    operands = []
    for name in "ab":
        port = found.ports[name]
        *batch, rows, columns = static(new.graph.shape(port)) or ()
        together = count, math.prod(batch) * rows // count, columns
        operands.append(new.shaped(port, together))
    made = part_of(product, product.op, *operands)
    made.attr["adj_x"].b, made.attr["adj_y"].b = True, False
    new.replace(product, made)
    result = (new.graph.result_shape(product) or ())[-2:]
    new.shapes[product.name] = ((count, *result),)
    axis = new.add(new.constant((0,), DT_INT32), "axis", (1,))
    new.replace(total, part_of(total, "Sum", product.name, axis))
