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

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence, Set

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.annotations import SCALE
from grappler_pass.eligibility.fused_ops import part_node, parts_of
from grappler_pass.fusions.new_nodes import (
    NewNodes,
    controls,
    handing_on,
    with_new_nodes,
)
from grappler_pass.fusions.passes import (
    model_of,
    only_reader,
    other_operand,
    pass_seconds,
    untouchable_names,
)
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.view import GraphView, Node, Port, port_text
from grappler_pass.pricing.seconds import NODE_SECONDS, Models

_PRODUCTS = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "MatMul")
_SUMS = ("Add", "AddV2")
# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 2.0
# What runs in each call to find scaled weights and a bias that are kept.
_NODES_OF_KEPT = 4


@dataclasses.dataclass(frozen=True)
class Fold:
    """A product, the scales of its channels, and what is added to them.

    Attributes:
      product: with nothing but a bias fused behind it.
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
      seconds: saved per execution.
    """

    product: Node
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
    seconds: float = 0.0

    @property
    def root(self) -> Node:
        """What it begins with."""
        return self.product

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes behind the product that are others afterwards."""
        return tuple(filter(None, (self.between, self.mul, self.add)))

    @property
    def scale_shape(self) -> tuple[int, ...]:
        """How scales broadcast to the weights."""
        if self.op == "DepthwiseConv2dNative":
            return self.weights[-2:]
        attrs = self.product.proto.attr
        # Reading an absent key would create it.
        if "transpose_b" in attrs and attrs["transpose_b"].b:
            return (self.channels, 1)
        return (self.channels,)


def found(
    view: GraphView,
    shapes: Shapes,
    models: Models,
    kept: Set[Port] = frozenset(),
) -> list[Fold]:
    """Return what can be folded and surely pays.

    Args:
      view: of the graph.
      shapes: static shapes; what is not known is not folded.
      models: a cost model per device type, "CPU" at least.
      kept: what is kept between calls, with what is computed of it alone.
    """
    if any(_scales_losses(node) for node in view.nodes):
        return []
    folds = _each_shift_once(_found(view, shapes))
    priced = (_priced(fold, view, shapes, models, kept) for fold in folds)
    return [fold for fold in priced if fold.seconds > 0.0]


def _scales_losses(node: Node) -> bool:
    return SCALE in node.proto.attr


def _each_shift_once(folds: Iterable[Fold]) -> Iterator[Fold]:
    """Yield folds, of two products that are added up the second without the shift."""
    taken: set[int] = set()
    for fold in folds:
        if fold.add and fold.add.index in taken:
            fold = dataclasses.replace(fold, shortcut=None, add=None, shift=None)
        elif fold.add:
            taken.add(fold.add.index)
        yield fold


def _found(view: GraphView, shapes: Shapes) -> Iterator[Fold]:
    untouchable = untouchable_names(view)
    for product in view.nodes:
        parts = parts_of(product.proto)
        op = parts[0].op if parts else product.op
        if op not in _PRODUCTS or [part.op for part in parts[1:]] not in (
            [],
            ["BiasAdd"],
        ):
            continue
        if fold := _fold_behind(view, shapes, product, op):
            nodes = (product, *fold.replaced, *filter(None, [fold.shortcut]))
            if untouchable.isdisjoint(node.name for node in nodes):
                yield fold


def _fold_behind(
    view: GraphView, shapes: Shapes, product: Node, op: str
) -> Fold | None:
    channels = _channels(view, shapes, product)
    weights = _static(known_shape(shapes, view, product.inputs[1]))
    if not channels or weights is None or product.proto.attr["T"].type != DT_FLOAT:
        return None
    is_fused = len(product.inputs) > 2
    between = None if is_fused else _only_reader(view, product, ("BiasAdd",))
    biased = between or product
    bias = biased.inputs[-1] if is_fused or between else None
    if bias and not _is_per_channel(view, shapes, bias, weights, channels):
        return None
    mul = _only_reader(view, biased, ("Mul",))
    scale = other_operand(mul, biased) if mul else None
    if not mul or not scale:
        return None
    if not _is_per_channel(view, shapes, scale, weights, channels):
        return None
    fold = Fold(product, op, bias, between, mul, scale, channels, weights)
    return _with_shift(fold, view, shapes)


def _with_shift(fold: Fold, view: GraphView, shapes: Shapes) -> Fold:
    """Return a fold with what is added per channel, if anything."""
    mul = fold.mul
    shortcut = _only_reader(view, mul, ADDITION_OPS)
    for before, summed in ((mul, None), (shortcut, shortcut)):
        if before is None or (summed and not _adds_alike(summed, mul, view, shapes)):
            continue
        add = _only_reader(view, before, _SUMS)
        shift = other_operand(add, before) if add else None
        if shift and _is_per_channel(view, shapes, shift, fold.weights, fold.channels):
            return dataclasses.replace(fold, shortcut=summed, add=add, shift=shift)
    return fold


def _adds_alike(shortcut: Node, mul: Node, view: GraphView, shapes: Shapes) -> bool:
    """Return whether two results of the same shape are added."""
    other = other_operand(shortcut, mul)
    shape = known_shape(shapes, view, Port(mul.index, 0))
    return bool(other and shape and known_shape(shapes, view, other) == shape)


def _channels(view: GraphView, shapes: Shapes, product: Node) -> int | None:
    """Return how many values one scale each is for; None where they are not last."""
    attrs = product.proto.attr
    if "data_format" in attrs and not attrs["data_format"].s.endswith(b"C"):
        return None
    shape = known_shape(shapes, view, Port(product.index, 0))
    return shape[-1] if shape else None


def _static(shape: Shape | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    sizes = tuple(size for size in shape if size is not None)
    return sizes if len(sizes) == len(shape) else None


def _only_reader(view: GraphView, node: Node, ops: Collection[str]) -> Node | None:
    """Return what alone reads or waits for a node, if it is one of some ops."""
    reader = only_reader(view, node)
    if reader is None or reader.op not in ops or reader.device != node.device:
        return None
    return reader if reader.proto.attr["T"].type == DT_FLOAT else None


def _is_per_channel(
    view: GraphView,
    shapes: Shapes,
    port: Port,
    weights: tuple[int, ...],
    channels: int,
) -> bool:
    """Return whether a tensor holds one value per channel, of a product's rank."""
    shape = _static(known_shape(shapes, view, port))
    if not shape or len(shape) > len(weights):
        return False
    return shape == (*[1] * (len(shape) - 1), channels)


def _priced(
    fold: Fold, view: GraphView, shapes: Shapes, models: Models, kept: Set[Port]
) -> Fold:
    """Return a fold with what it saves; nothing where that is in doubt."""
    model = model_of(models, fold.product)

    def seconds(op: str, shape: Shape | None) -> float:
        return pass_seconds(model, op, shape, (fold.channels,))

    result = known_shape(shapes, view, Port(fold.product.index, 0))
    # A bias that is added by a kernel of its own takes as long as a sum.
    fuses = model.profile.kind == "cpu"
    removed = ["Mul", *(["AddV2"] if fold.add and fuses else [])]
    saved = sum(seconds(op, result) for op in removed)
    spent = seconds("Mul", fold.weights)
    if fold.bias is not None:
        spent += seconds("Mul", (fold.channels,))
        spent += seconds("AddV2", (fold.channels,)) if fold.add else 0.0
    if kept >= {fold.product.inputs[1], fold.scale}:
        spent = min(spent, _NODES_OF_KEPT * NODE_SECONDS)
    if saved < _LEAST_RATIO * spent:
        return fold
    weight = view.weight(fold.product.index)
    return dataclasses.replace(fold, seconds=weight * (saved - spent))


def rewritten(
    graph_def: GraphDef, view: GraphView, shapes: Shapes, found: Sequence[Fold]
) -> tuple[GraphDef, Shapes]:
    """Return a copy of a graph with scales folded, and its static shapes.

    Every node keeps its name; what multiplied by the scales hands the product on.
    """
    return with_new_nodes(
        graph_def, shapes, [_made(fold, view, shapes) for fold in found]
    )


def _made(fold: Fold, view: GraphView, shapes: Shapes) -> NewNodes:
    """Return the nodes of one fold."""
    # In the frame of a loop, if the product is in one.
    made = NewNodes(view, shapes, fold.product, fold.product.inputs[1])
    vector = (fold.channels,)
    scale = made.shaped(fold.scale, fold.scale_shape)
    weights = port_text(view, fold.product.inputs[1])
    scaled = made.computed("Mul", "weights", (weights, scale), fold.weights)
    product = part_node(fold.product.proto, fold.op, DT_FLOAT)
    product.input.extend((port_text(view, fold.product.inputs[0]), scaled))
    made.replace(fold.product, product)
    *others, last = fold.replaced
    if fold.shortcut:
        other = other_operand(fold.shortcut, fold.mul)
        assert other is not None, "as it was found"
        summed = part_node(last.proto, "AddV2", DT_FLOAT)
        summed.input.extend((fold.mul.name, port_text(view, other)))
        made.replace(last, summed)
        made.replace(fold.shortcut, handing_on(fold.shortcut, fold.mul.name))
        *others, last = others
    for node in others:
        made.replace(node, handing_on(node, product.name))
    shift = made.shaped(fold.shift, vector) if fold.shift else ""
    if fold.bias:
        factors = made.shaped(fold.bias, vector), made.shaped(fold.scale, vector)
        bias = made.computed("Mul", "bias", factors, vector)
        if shift:
            bias = made.computed("AddV2", "shift", (bias, shift), vector)
        shift = bias
    if not shift:
        made.replace(last, handing_on(last, product.name))
        return made
    added = part_node(last.proto, "BiasAdd", DT_FLOAT)
    added.attr["data_format"].s = b"NHWC"
    added.input.extend((product.name, shift))
    awaited = {text for node in others for text in controls(node)}
    made.replace(last, added).input.extend(sorted(awaited.difference(added.input)))
    return made
