"""Fold the scales of a product's channels into its weights, as in inference.

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
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.annotations import SCALE
from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.known_wrong import ends_in_channels
from grappler_pass.fusions.new_nodes import NewNodes, controls, part_of
from grappler_pass.fusions.passes import PricedGraph, other_operand
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shape, static
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import Node, Port, port_text
from grappler_pass.planning.prices import NODE_SECONDS

_PRODUCTS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul")
_SUMS = ("Add", "AddV2")
# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 2.0
# What runs in each call to find scaled weights and a bias that are kept.
_NODES_OF_KEPT = 4


class Fold(NamedTuple):
    """A product, the scales of its channels, and what is added to them.

    Attributes:
      root: the product, with nothing but a bias fused behind it.
      op: of the product itself.
      bias: what is added to it before, in its own kernel or by `between`, if anything.
      between: adds the bias, if not the product's kernel.
      mul: the only reader.
      scale: what `mul` multiplies by, one value per channel.
      channels: how many.
      weights: static shape of the product's second operand.
      shortcut: the only reader of `mul` if that adds another result, to which `add`
        adds; else None.
      add: the only reader of either if that adds one value per channel; else None.
      shift: those values.
    """

    root: Node
    op: str
    bias: Port | None
    between: Node | None
    mul: Node
    scale: Port
    channels: int
    weights: tuple[int, ...]
    shortcut: Node | None = None
    add: Node | None = None
    shift: Port | None = None

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes behind the product that are others afterwards."""
        return tuple(filter(None, (self.between, self.mul, self.add)))

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """How scales broadcast to the weights."""
        if self.op == "DepthwiseConv2dNative":
            return self.weights[-2:]
        if self.op == "MatMul" and attr_of(self.root.proto, "transpose_b").b:
            return (self.channels, 1)
        return (self.channels,)


def found(graph: PricedGraph) -> Iterator[Fold]:
    """Yield what can be folded, a shift of two products once."""
    nodes = graph.view.nodes
    if any(SCALE in node.proto.attr for node in nodes):
        return
    shifted: set[int] = set()
    for product in nodes:
        fold = _fold_behind(product, graph)
        if fold is None:
            continue
        shortcut = filter(None, [fold.shortcut])
        if not graph.may_change(product, *fold.replaced, *shortcut):
            continue
        if fold.add and fold.add.index in shifted:
            fold = fold._replace(shortcut=None, add=None, shift=None)
        elif fold.add:
            shifted.add(fold.add.index)
        yield fold


def _fold_behind(product: Node, graph: PricedGraph) -> Fold | None:
    op, *fused = [part.op for part in parts_of(product.proto)] or [product.op]
    if op not in _PRODUCTS or fused not in ([], ["BiasAdd"]):
        return None
    channels = _channels(product, graph)
    weights = static(graph.shape(product.inputs[1]))
    if not channels or weights is None or product.proto.attr["T"].type != DT_FLOAT:
        return None
    between = None if fused else _only_reader(graph, product, ("BiasAdd",))
    biased = between or product
    bias = biased.inputs[-1] if fused or between else None
    axes = len(weights)
    if bias and not graph.is_per_channel(bias, channels, axes):
        return None
    mul = _only_reader(graph, biased, ("Mul",))
    scale = other_operand(mul, biased) if mul else None
    if not mul or not scale or not graph.is_per_channel(scale, channels, axes):
        return None
    fold = Fold(product, op, bias, between, mul, scale, channels, weights)
    return _with_shift(fold, graph)


def _with_shift(fold: Fold, graph: PricedGraph) -> Fold:
    """Return a fold with what is added per channel, if anything."""
    mul = fold.mul
    shortcut = _only_reader(graph, mul, ADDITION_OPS)
    for before, summed in ((mul, None), (shortcut, shortcut)):
        if before is None or (summed and not _adds_alike(summed, mul, graph)):
            continue
        add = _only_reader(graph, before, _SUMS)
        shift = other_operand(add, before) if add else None
        if shift and graph.is_per_channel(shift, fold.channels, len(fold.weights)):
            return fold._replace(shortcut=summed, add=add, shift=shift)
    return fold


def _adds_alike(shortcut: Node, mul: Node, graph: PricedGraph) -> bool:
    """Return whether two results of the same shape are added."""
    other = other_operand(shortcut, mul)
    shape = graph.result_shape(mul)
    return bool(other and shape and graph.shape(other) == shape)


def _channels(product: Node, graph: PricedGraph) -> int | None:
    """Return how many values one scale each is for; None where they are not last."""
    shape = graph.result_shape(product)
    return shape[-1] if shape and ends_in_channels(product.proto) else None


def _only_reader(graph: PricedGraph, node: Node, ops: Collection[str]) -> Node | None:
    """Return what alone reads or waits for a node, if it is one of some ops."""
    reader = graph.only_reader(node, *ops)
    if reader is None or reader.place != node.place:
        return None
    return reader if reader.proto.attr["T"].type == DT_FLOAT else None


def seconds(fold: Fold, graph: PricedGraph) -> float:
    """Return what a fold saves per step; 0.0 where that is in doubt."""

    def takes(op: str, shape: Shape | None) -> float:
        return graph.pass_seconds(fold.root, op, shape, (fold.channels,))

    def takes_if_not_constant(
        op: str, shape: Shape | None, *operands: Port | None
    ) -> float:
        known = (graph.is_constant(port) for port in operands if port)
        return 0.0 if all(known) else takes(op, shape)

    result = graph.result_shape(fold.root)
    # A bias that is added by a kernel of its own takes as long as a sum.
    fuses = graph.model(fold.root).profile.kind == "cpu"
    removed = ["Mul", *(["AddV2"] if fold.add and fuses else [])]
    saved = sum(takes(op, result) for op in removed)
    weights, vector = fold.root.inputs[1], (fold.channels,)
    spent = takes_if_not_constant("Mul", fold.weights, weights, fold.scale)
    if fold.bias is not None:
        factors = fold.bias, fold.scale
        spent += takes_if_not_constant("Mul", vector, *factors)
        if fold.add:
            spent += takes_if_not_constant("AddV2", vector, *factors, fold.shift)
    if graph.kept >= {weights, fold.scale}:
        spent = min(spent, _NODES_OF_KEPT * NODE_SECONDS)
    return graph.gain(fold.root, saved, spent, _LEAST_RATIO)


def made(fold: Fold, graph: PricedGraph) -> NewNodes:
    """Return the nodes of a fold; what multiplied now hands the product on."""
    view, root = graph.view, fold.root
    # In the frame of a loop, if the product is in one.
    new = NewNodes(graph, root, root.inputs[1])
    vector = (fold.channels,)
    scale = new.shaped(fold.scale, fold.scale_shape)
    weights = port_text(view, root.inputs[1])
    scaled = new.computed("Mul", "weights", (weights, scale), fold.weights)
    new.replace(root, part_of(root, fold.op, port_text(view, root.inputs[0]), scaled))
    *others, last = fold.replaced
    if fold.shortcut:
        other = other_operand(fold.shortcut, fold.mul)
        assert other is not None, "as it was found"
        new.replace(last, part_of(last, "AddV2", fold.mul.name, port_text(view, other)))
        new.hand_on(fold.shortcut, fold.mul.name)
        *others, last = others
    for node in others:
        new.hand_on(node, root.name)
    shift = new.shaped(fold.shift, vector) if fold.shift else ""
    if fold.bias:
        factors = new.shaped(fold.bias, vector), new.shaped(fold.scale, vector)
        bias = new.computed("Mul", "bias", factors, vector)
        if shift:
            bias = new.computed("AddV2", "shift", (bias, shift), vector)
        shift = bias
    if not shift:
        new.hand_on(last, root.name)
        return new
    added = part_of(last, "BiasAdd", root.name, shift)
    added.attr["data_format"].s = b"NHWC"
    awaited = {text for node in others for text in controls(node)}
    new.replace(last, added).input.extend(sorted(awaited.difference(added.input)))
    return new
