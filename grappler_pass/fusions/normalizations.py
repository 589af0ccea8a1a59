"""Normalizations: layers' by one kernel, and no bias in front of a batch's.

Normalize the last axis by one kernel where Keras 3 takes eight passes:

    Before   m = Mean(x); s = Rsqrt(Mean(SquaredDifference(x, m)) + epsilon) * gamma
             x * s + (-m * s + beta), in whatever order these three are summed up
    After    _MklLayerNorm(x, gamma, beta)

The kernel (tensorflow/core/kernels/mkl/mkl_layer_norm_op.cc) takes two or three axes,
so that others are folded into the first. TensorFlow's remapper uses it for the forms of
Keras 2 alone. It subtracts the mean first, and is nearer to the exact result.

Not done: where anything else reads what lies between, as gradients do in training;
without gamma or beta; where other axes than the last are normalized; where two sizes
in front of three axes are unknown; for tensors so small that making the kernel's
primitive, which it does in each call, takes longer than what it saves.

Take a bias out of what is normalized by the statistics of its batch:

    Before   Conv2D(x, w) --> BiasAdd(b) --> FusedBatchNormV3 --> mean
    After    Conv2D(x, w) --> FusedBatchNormV3 --> mean --> AddV2(b)

Normalizing takes off the mean, and with it whatever is added to a whole channel: the
bias shows in the mean alone, and the sum that is its gradient is zero. Not to add up
that gradient saves a pass; in 16 bits the kernel then reads the product itself, where
rounding what a bias was added to would cost exactness.

Not done: where anything else reads the biased product, as the caller may; with moving
statistics; where the kernel averages them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.fusions.matching import (
    NewNodes,
    Pattern,
    PricedGraph,
    controls,
    part_of,
    with_inputs,
)
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shape
from grappler_pass.graph.type_slots import attr_of, kernel_exists
from grappler_pass.graph.view import GraphView, Node, Port, port_text

KERNEL = "_MklLayerNorm"
_MOST_AXES = 3
# What Keras writes that reads or writes whole tensors.
_PASSES = ("Mean", "SquaredDifference", "Mean", "Mul", "Mul", "Mul", "AddV2", "AddV2")
# What the kernel takes for a tensor of any size: on two cores 16 x 64 values take 0.27
# ms, 256 x 256 take 0.5, Keras' operations 0.15 and 0.34.
_CALL_SECONDS = 3e-4
# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 1.5


_STATISTICS = """
    mean = Mean(x, axes)
    difference = SquaredDifference(x, mean)
    variance = Mean(difference, axes_of_variance)
    summed = Add|AddV2(variance, epsilon)
    rsqrt = Rsqrt(summed)
    scale = Mul(rsqrt, gamma)
    negated = Neg(mean)
    shifted = Mul(negated, scale)
    scaled = Mul(x, scale)
"""
# The three terms are summed up in any order.
_PATTERNS = tuple(
    Pattern(
        f"{_STATISTICS}\ninner = SUM({first}, {second})\nlast = SUM(inner, {third})",
        SUM=ADDITION_OPS,
    )
    for first, second, third in (
        ("scaled", "shifted", "beta"),
        ("scaled", "beta", "shifted"),
        ("shifted", "beta", "scaled"),
    )
)
_NORMS = ("FusedBatchNormV3", "_FusedBatchNormEx")
_GRADIENTS = ("FusedBatchNormGradV3", "_FusedBatchNormGradEx")
# By how much the kernel averages statistics itself.
_FACTOR = "exponential_avg_factor"
# Of a normalization: inputs, and outputs.
_INPUT, _MEAN, _SAVED = 0, 1, 3
# Of its gradient.
_GRADIENT_INPUT, _GRADIENT_SAVED = 1, 3


class Normalization(NamedTuple):
    """One as Keras 3 writes it.

    Attributes:
      x: what is normalized.
      gamma: one value per channel.
      beta: one value per channel.
      epsilon: what is added to the variance.
      nodes: all that lies between; only the last is read elsewhere.
      shape: static shape of `x`.
      channels: its last size.
    """

    x: Port
    gamma: Port
    beta: Port
    epsilon: float
    nodes: tuple[Node, ...]
    shape: Shape
    channels: int

    @property
    def root(self) -> Node:
        """What adds the last of three terms."""
        return self.nodes[-1]

    def seconds(self, graph: PricedGraph) -> float:
        """Return what one kernel saves per step; 0.0 where that is uncertain."""
        root, shape = self.root, self.shape
        saved = sum(graph.pass_seconds(root, op, shape) for op in _PASSES)
        kernel = graph.pass_seconds(root, KERNEL, shape, (self.channels,))
        return graph.gain(root, saved, _CALL_SECONDS + kernel, _LEAST_RATIO)

    def write(
        self, graph: PricedGraph, new_nodes: Callable[[Node, Port], NewNodes]
    ) -> None:
        """Put one kernel in for all; what nothing reads any more takes no time."""
        root, channels = self.root, self.channels
        new = new_nodes(root, self.x)
        vectors = (self.gamma, self.beta)
        gamma, beta = (new.shaped(port, (channels,)) for port in vectors)
        for node in self.nodes[:-1]:
            new.hand_on(node, root.name)
            new.shapes[node.name] = (self.shape,)
        x = port_text(graph.view, self.x)
        is_folded = len(self.shape) > _MOST_AXES
        if is_folded:
            rows = (x, new.sizes((-1, channels)))
            x = new.computed("Reshape", "rows", rows, (None, channels))
        awaited = sorted({text for node in self.nodes for text in controls(node)})
        kernel = part_of(root, KERNEL, x, gamma, beta, *awaited)
        kernel.attr["epsilon"].f = self.epsilon
        if is_folded:
            normalized = new.add(kernel, "normalized", (None, channels))
            sizes = new.sizes(tuple(-1 if s is None else s for s in self.shape))
            kernel = part_of(root, "Reshape", normalized, sizes)
        new.replace(root, kernel)


def normalizations(graph: PricedGraph) -> Iterator[Normalization]:
    """Yield the normalizations of layers that the kernel takes."""
    types = (("T", int(DT_FLOAT)),)
    for node in graph.view.nodes:
        if node.op != "Rsqrt" or node.device_type != "CPU":
            continue
        if not kernel_exists(KERNEL, types, node.device_type):
            return
        each = _around(graph, node)
        if each is not None and graph.may_change(*each.nodes):
            yield each


def _around(graph: PricedGraph, rsqrt: Node) -> Normalization | None:
    """Return the normalization that a reciprocal root belongs to, if it does to one."""
    for pattern in _PATTERNS:
        ports = pattern.match(graph, "rsqrt", rsqrt)
        nodes = pattern.nodes(graph, ports) if ports else ()
        shape = graph.shape(ports["x"]) if ports else None
        epsilon = _scalar(graph.view, ports["epsilon"]) if ports else None
        if not ports or epsilon is None or not shape or not shape[-1]:
            continue
        rank, channels = len(shape), shape[-1]
        x, gamma, beta = (ports[name] for name in ("x", "gamma", "beta"))
        means = (node for node in nodes if node.op == "Mean")
        if (
            rank > 1
            and (rank <= _MOST_AXES or (shape.count(None) <= 1 and 0 not in shape))
            and all(node.place == rsqrt.place for node in nodes)
            and all(node.proto.attr["T"].type == DT_FLOAT for node in nodes)
            and all(graph.is_per_channel(p, channels, rank) for p in (gamma, beta))
            and all(_is_over_channels(graph, mean, rank) for mean in means)
        ):
            return Normalization(x, gamma, beta, epsilon, nodes, shape, channels)
    return None


def _scalar(view: GraphView, port: Port) -> float | None:
    """Return the value of a constant of one element; None for any other tensor."""
    node = view.nodes[port.node]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.proto.attr["value"].tensor)
    return float(value.item()) if value.size == 1 else None


def _is_over_channels(graph: PricedGraph, reduction: Node, rank: int) -> bool:
    """Return whether a mean is over the last axis, which it keeps."""
    axis = _scalar(graph.view, reduction.inputs[1])
    keeps = attr_of(reduction.proto, "keep_dims").b
    return bool(keeps) and axis in (-1, rank - 1)


class NormalizedBias(NamedTuple):
    """A bias in front of a normalization.

    Attributes:
      root: adds it, by itself or behind the product in one kernel.
      bias: one value per channel.
      norm: reads what it gives.
      channels: how many.
      sums: gradients of the bias.
      readers: of the mean.
    """

    root: Node
    bias: Port
    norm: Node
    channels: int
    sums: tuple[Node, ...]
    readers: tuple[Node, ...]

    def seconds(self, graph: PricedGraph) -> float:
        """Return what is saved per step: whole passes for one over a vector."""
        norm, vector = self.norm, (self.channels,)
        own = ["BiasAdd"] if self.root.op == "BiasAdd" else []
        removed = [*own, *("BiasAddGrad" for _ in self.sums)]
        shape = graph.result_shape(norm)
        saved = sum(graph.pass_seconds(norm, op, shape, vector) for op in removed)
        return graph.gain(norm, saved, graph.pass_seconds(norm, "AddV2", vector))

    def write(
        self, graph: PricedGraph, new_nodes: Callable[[Node, Port], NewNodes]
    ) -> None:
        """Add the bias to the mean, and hand the product on instead."""
        norm, view, vector = self.norm, graph.view, (self.channels,)
        new = new_nodes(norm, norm.inputs[_INPUT])
        self._take_out(view, new)
        mean = port_text(view, Port(norm.index, _MEAN))
        terms = mean, new.shaped(self.bias, vector)
        moved = new.computed("AddV2", "mean", terms, vector)
        for reader in self.readers:
            new.replace(reader, with_inputs(reader, {mean: moved}))
        for node in self.sums:
            zeros = new.constant(0.0, DT_FLOAT, vector, anchor=node.inputs[0])
            zeros.device = node.proto.device
            new.replace(node, zeros)

    def _take_out(self, view: GraphView, new: NewNodes) -> None:
        biased = self.root
        if biased.op == "BiasAdd":
            new.hand_on(biased, port_text(view, biased.inputs[0]))
            return
        operands = (port_text(view, port) for port in biased.inputs[:2])
        new.replace(biased, part_of(biased, parts_of(biased.proto)[0].op, *operands))


def normalized_biases(graph: PricedGraph) -> Iterator[NormalizedBias]:
    """Yield the biases that can be taken out."""
    changed: set[str] = set()
    for norm in graph.view.nodes:
        if norm.op not in _NORMS or not _is_of_batch(norm):
            continue
        each = _bias_of(norm, graph)
        if each is None or not graph.may_change(each.root, norm):
            continue
        replaced = {node.name for node in (each.root, *each.readers, *each.sums)}
        if changed.isdisjoint(replaced):
            changed |= replaced
            yield each


def _is_of_batch(norm: Node) -> bool:
    attrs = (attr_of(norm.proto, name) for name in ("is_training", _FACTOR, "T"))
    is_training, factor, dtype = attrs
    return bool(is_training.b and factor.f == 1.0 and dtype.type == DT_FLOAT)


def _bias_of(norm: Node, graph: PricedGraph) -> NormalizedBias | None:
    view, layout = graph.view, _layout(norm)
    biased = view.nodes[norm.inputs[_INPUT].node]
    is_fused = [part.op for part in parts_of(biased.proto)][1:] == ["BiasAdd"]
    if not is_fused and biased.op != "BiasAdd":
        return None
    if biased.place != norm.place or _layout(biased) != layout:
        return None
    bias = biased.inputs[2 if is_fused else 1]
    shape = graph.shape(bias)
    channels = shape[-1] if shape else None
    gradients = _gradients_of(norm, view)
    if gradients is None or shape is None or not channels:
        return None
    if any(size != 1 for size in shape[:-1]):
        return None
    summing = (
        view.nodes[reader.node]
        for gradient in gradients
        for reader in view.readers(Port(gradient.index, 0))
    )
    sums = tuple(
        node
        for node in summing
        if node.op == "BiasAddGrad"
        and _layout(node) == layout
        and graph.may_change(node)
    )
    readers = graph.distinct(r.node for r in view.readers(Port(norm.index, _MEAN)))
    return NormalizedBias(biased, bias, norm, channels, sums, readers)


def _layout(node: Node) -> bytes:
    attrs = node.proto.attr
    # Reading an absent key would create it.
    return bytes(attrs["data_format"].s) if "data_format" in attrs else b"NHWC"


def _gradients_of(norm: Node, view: GraphView) -> tuple[Node, ...] | None:
    """Return its gradients; None if anything else would see that a bias is gone."""
    readers = view.readers(norm.inputs[_INPUT])
    nodes = [view.nodes[r.node] for r in readers if r.node != norm.index]
    if len(readers) != len(nodes) + 1:
        return None
    saved = Port(norm.index, _SAVED)
    if any(
        node.op not in _GRADIENTS
        or node.inputs[_GRADIENT_SAVED] != saved
        or node.inputs.count(norm.inputs[_INPUT]) != 1
        or node.inputs[_GRADIENT_INPUT] != norm.inputs[_INPUT]
        for node in nodes
    ):
        return None
    known = {node.index for node in nodes}
    if any(reader.node not in known for reader in view.readers(saved)):
        return None
    return tuple(nodes)
