"""Products: scales and shifts of their channels, biases and activations behind them.

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

Activate rows of a product before they are given the axes of a larger tensor:

    Before   MatMul(x, w) --> Reshape --> BiasAdd --> activation
    After    MatMul(x, w) --> BiasAdd --> activation --> Reshape

That is a Dense layer on inputs of three and more axes, as Keras writes it: it
multiplies rows. TensorFlow's remapper makes one kernel of a product, its bias and its
activation, GELU as well, but only where no Reshape lies between them; it runs again
after this. Each value is computed from the same ones as before.

Not done: where anything else reads what lies between, as the gradient of GELU does;
where channels do not stay last; where no activation follows, which gains nothing; on
GPUs, where it was not measured.

References: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.annotations import SCALE
from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.eligibility.known_wrong import ends_in_channels
from grappler_pass.fusions.matching import (
    NewNodes,
    PricedGraph,
    controls,
    other_operand,
    part_of,
    with_inputs,
)
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
# What activations that the remapper knows consist of.
_ACTIVATIONS = (
    {"Relu"},
    {"Relu6"},
    {"Elu"},
    {"LeakyRelu"},
    # GELU, by the error function and by tanh.
    {"Neg", "Mul", "Erfc"},
    {"Mul", "AddV2", "Erf"},
    {"Mul", "AddV2", "Tanh", "Square"},
    {"Mul", "AddV2", "Tanh", "Pow"},
)
_OPS = frozenset[str]().union(*_ACTIVATIONS)
_MOST_NODES = 12


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

    def seconds(self, graph: PricedGraph) -> float:
        """Return what a fold saves per step; 0.0 where that is uncertain."""

        def takes(op: str, shape: Shape | None) -> float:
            return graph.pass_seconds(self.root, op, shape, (self.channels,))

        def takes_if_not_constant(
            op: str, shape: Shape | None, *operands: Port | None
        ) -> float:
            known = (graph.is_constant(port) for port in operands if port)
            return 0.0 if all(known) else takes(op, shape)

        result = graph.result_shape(self.root)
        # A bias that is added by a kernel of its own takes as long as a sum.
        fuses = graph.model(self.root).profile.kind == "cpu"
        removed = ["Mul", *(["AddV2"] if self.add and fuses else [])]
        saved = sum(takes(op, result) for op in removed)
        weights, vector = self.root.inputs[1], (self.channels,)
        spent = takes_if_not_constant("Mul", self.weights, weights, self.scale)
        if self.bias is not None:
            factors = self.bias, self.scale
            spent += takes_if_not_constant("Mul", vector, *factors)
            if self.add:
                spent += takes_if_not_constant("AddV2", vector, *factors, self.shift)
        if graph.kept >= {weights, self.scale}:
            spent = min(spent, _NODES_OF_KEPT * NODE_SECONDS)
        return graph.gain(self.root, saved, spent, _LEAST_RATIO)

    def write(
        self, graph: PricedGraph, new_nodes: Callable[[Node, Port], NewNodes]
    ) -> None:
        """Scale the weights; what multiplied now hands the product on."""
        view, root = graph.view, self.root
        # In the frame of a loop, if the product is in one.
        new = new_nodes(root, root.inputs[1])
        vector = (self.channels,)
        scale = new.shaped(self.scale, self.scale_shape)
        weights = port_text(view, root.inputs[1])
        scaled = new.computed("Mul", "weights", (weights, scale), self.weights)
        x = port_text(view, root.inputs[0])
        new.replace(root, part_of(root, self.op, x, scaled))
        *others, last = self.replaced
        if self.shortcut:
            other = other_operand(self.shortcut, self.mul)
            assert other is not None, "as it was found"
            terms = self.mul.name, port_text(view, other)
            new.replace(last, part_of(last, "AddV2", *terms))
            new.hand_on(self.shortcut, self.mul.name)
            *others, last = others
        for node in others:
            new.hand_on(node, root.name)
        shift = new.shaped(self.shift, vector) if self.shift else ""
        if self.bias:
            factors = new.shaped(self.bias, vector), new.shaped(self.scale, vector)
            bias = new.computed("Mul", "bias", factors, vector)
            if shift:
                bias = new.computed("AddV2", "shift", (bias, shift), vector)
            shift = bias
        if not shift:
            new.hand_on(last, root.name)
            return
        added = part_of(last, "BiasAdd", root.name, shift)
        added.attr["data_format"].s = b"NHWC"
        awaited = {text for node in others for text in controls(node)}
        new.replace(last, added).input.extend(sorted(awaited.difference(added.input)))


def folds(graph: PricedGraph) -> Iterator[Fold]:
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


class Activation(NamedTuple):
    """What follows a product of rows that are given more axes.

    Attributes:
      root: the matrix product, whose only reader is `reshape`.
      reshape: gives its rows more axes, and is read by the bias alone.
      nodes: the bias and what activates it; of these only the last is read elsewhere.
      shape: static shape of the product.
    """

    root: Node
    reshape: Node
    nodes: tuple[Node, ...]
    shape: Shape

    def seconds(self, graph: PricedGraph) -> float:
        """Return what is saved per step: all passes but for the longest."""
        passes = [
            graph.pass_seconds(self.root, node.op, self.shape) for node in self.nodes
        ]
        return graph.gain(self.root, sum(passes), max(passes))

    def write(
        self, graph: PricedGraph, new_nodes: Callable[[Node, Port], NewNodes]
    ) -> None:
        """Activate the product in rows; the last node hands on what has more axes."""
        reshape, last = self.reshape, self.nodes[-1]
        new = new_nodes(self.root, self.root.inputs[0])
        for node in self.nodes[:-1]:
            new.replace(node, self._in_rows(node))
            new.shapes[node.name] = (self.shape,)
        rows = new.add(self._in_rows(last), "activation", self.shape)
        sizes = port_text(graph.view, reshape.inputs[1])
        new.replace(reshape, part_of(reshape, "Reshape", rows, sizes))
        new.hand_on(last, reshape.name)

    def _in_rows(self, node: Node) -> NodeDef:
        """Return the same operation on the product itself."""
        name = self.reshape.name
        row = with_inputs(node, dict.fromkeys((name, f"{name}:0"), self.root.name))
        row.attr.pop("_output_shapes", None)
        return row


def activations(graph: PricedGraph) -> Iterator[Activation]:
    """Yield what can be activated in rows."""
    for product in graph.view.nodes:
        if product.op != "MatMul" or product.proto.attr["T"].type != DT_FLOAT:
            continue
        if graph.model(product).profile.kind != "cpu":
            continue
        reshape = graph.only_reader(product, "Reshape")
        shape = graph.result_shape(product)
        if not reshape or not shape or not _keeps_channels(graph, shape, reshape):
            continue
        nodes = _activation_behind(graph, reshape)
        if not nodes or any(node.place != product.place for node in nodes):
            continue
        if graph.may_change(product, reshape, *nodes):
            yield Activation(product, reshape, nodes, shape)


def _keeps_channels(graph: PricedGraph, shape: Shape, reshape: Node) -> bool:
    given = graph.result_shape(reshape)
    return bool(given and shape[-1] and shape[-1] == given[-1])


def _activation_behind(graph: PricedGraph, reshape: Node) -> tuple[Node, ...]:
    """Return a bias and its activation; nothing if there is none that is known."""
    bias = graph.only_reader(reshape, "BiasAdd")
    if bias is None or bias.inputs[0].node != reshape.index:
        return ()
    if not ends_in_channels(bias.proto):
        return ()
    nodes: tuple[Node, ...] = (bias,)
    while len(nodes) < _MOST_NODES:
        following = _following(graph, nodes)
        if following is None:
            return ()
        nodes = (*nodes, following)
        if _read_outside(graph, nodes) == [following]:
            ops = {node.op for node in nodes[1:]}
            return nodes if ops in _ACTIVATIONS else ()
    return ()


def _following(graph: PricedGraph, nodes: Sequence[Node]) -> Node | None:
    """Return a further node that computes with these and with scalars alone."""
    known = {node.index for node in nodes}
    for node in nodes:
        for reader in graph.readers(node):
            if reader.index not in known and _computes_with(graph, reader, known):
                return reader
    return None


def _computes_with(graph: PricedGraph, node: Node, known: Collection[int]) -> bool:
    if node.op not in _OPS or node.controls or graph.view.control_readers(node.index):
        return False
    if node.proto.attr["T"].type != DT_FLOAT:
        return False
    return all(graph.shape(p) == () for p in node.inputs if p.node not in known)


def _read_outside(graph: PricedGraph, nodes: Sequence[Node]) -> list[Node]:
    """Return those of the nodes that others read."""
    known = {node.index for node in nodes}
    return [
        node
        for node in nodes
        if any(reader.index not in known for reader in graph.readers(node))
    ]
