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

import functools
from collections.abc import Iterator, Sequence

from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.fusions.matching import (
    Found,
    Match,
    NewNodes,
    Pattern,
    PricedGraph,
    controls,
    part_of,
    scalar_of,
    with_inputs,
)
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shape, static
from grappler_pass.graph.type_slots import attr_of, kernel_exists
from grappler_pass.graph.view import Graph, Node, Port

KERNEL = "_MklLayerNorm"
_MOST_AXES = 3
_VECTORS = ("gamma", "beta")
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
# A fused bias may have the axes of an image, or of a volume.
_MOST_BIAS_AXES = 5
# Outputs of a normalization.
_MEAN, _SAVED = 1, 3


def normalizations(graph: PricedGraph) -> Iterator[Match]:
    """Yield the normalizations of layers that the kernel takes."""
    types = (("T", int(DT_FLOAT)),)
    for rsqrt in graph.view.nodes:
        if rsqrt.op != "Rsqrt" or rsqrt.device_type != "CPU":
            continue
        if not kernel_exists(KERNEL, types, rsqrt.device_type):
            return
        all_found = (pattern.match(graph, "rsqrt", rsqrt) for pattern in _PATTERNS)
        found = next((f for f in all_found if f and _is_of_layer(graph, f)), None)
        if found is None or not graph.may_change(*found.nodes.values()):
            continue
        last, shape = found.nodes["last"], graph.shape(found.ports["x"]) or ()
        saved = sum(graph.pass_seconds(last, op, shape) for op in _PASSES)
        kernel = graph.pass_seconds(last, KERNEL, shape, shape[-1:])
        seconds = graph.gain(last, saved, _CALL_SECONDS + kernel, _LEAST_RATIO)
        write = functools.partial(_write_kernel, graph, found, shape)
        yield Match(last, seconds, last, found.ports["x"], write)


def _is_of_layer(graph: PricedGraph, found: Found) -> bool:
    """Return whether it is of the last axis, of a shape that the kernel takes."""
    ports, shape = found.ports, graph.shape(found.ports["x"])
    if not shape or not shape[-1] or scalar_of(graph.view, ports["epsilon"]) is None:
        return False
    rank, channels = len(shape), shape[-1]
    # The mean is over the last axis, which it keeps.
    return (
        rank > 1
        and (rank <= _MOST_AXES or (shape.count(None) <= 1 and 0 not in shape))
        and all(graph.is_per_channel(ports[v], channels, rank) for v in _VECTORS)
        and all(
            attr_of(node.proto, "keep_dims").b
            and scalar_of(graph.view, node.inputs[1]) in (-1, rank - 1)
            for node in found.nodes.values()
            if node.op == "Mean"
        )
    )


def _write_kernel(
    graph: PricedGraph, found: Found, shape: Shape, new: NewNodes
) -> None:
    """Put one kernel in for all; what nothing reads any more takes no time."""
    *others, last = found.nodes.values()
    channels = shape[-1] or 0
    gamma, beta = (new.shaped(found.ports[v], (channels,)) for v in _VECTORS)
    for node in others:
        new.pass_on(node, last.name)
        new.shapes[node.name] = (shape,)
    x = new.text(found.ports["x"])
    is_folded = len(shape) > _MOST_AXES
    if is_folded:
        rows = (x, new.sizes((-1, channels)))
        x = new.computed("Reshape", "rows", rows, (None, channels))
    awaited = sorted({text for node in found.nodes.values() for text in controls(node)})
    kernel = part_of(last, KERNEL, x, gamma, beta, *awaited)
    kernel.attr["epsilon"].f = scalar_of(graph.view, found.ports["epsilon"]) or 0.0
    if is_folded:
        normalized = new.add(kernel, "normalized", (None, channels))
        sizes = new.sizes(tuple(-1 if size is None else size for size in shape))
        kernel = part_of(last, "Reshape", normalized, sizes)
    new.replace(last, kernel)


def normalized_biases(graph: PricedGraph) -> Iterator[Match]:
    """Yield the biases that can be taken out."""
    changed: set[str] = set()
    view = graph.view
    for norm in view.nodes:
        if norm.op not in _NORMS:
            continue
        attrs = (attr_of(norm.proto, name) for name in ("is_training", _FACTOR, "T"))
        is_training, factor, dtype = attrs
        if not is_training.b or factor.f != 1.0 or dtype.type != DT_FLOAT:
            continue
        biased = view.nodes[norm.inputs[0].node]
        bias = _bias_of(biased)
        vector = static((graph.shape(bias) or ())[-1:]) if bias else None
        gradients = _gradients_of(norm, view)
        if (
            bias is None
            or not vector
            or not graph.is_per_channel(bias, vector[0], _MOST_BIAS_AXES)
            or (biased.place, _layout(biased)) != (norm.place, _layout(norm))
            or gradients is None
            or not graph.may_change(biased, norm)
        ):
            continue
        sums = [
            node
            for gradient in gradients
            for reader in view.readers(Port(gradient.index, 0))
            if (node := view.nodes[reader.node]).op == "BiasAddGrad"
            if _layout(node) == _layout(norm) and graph.may_change(node)
        ]
        numbers = (reader.node for reader in view.readers(Port(norm.index, _MEAN)))
        readers = [view.nodes[i] for i in dict.fromkeys(numbers)]
        replaced = {node.name for node in (biased, *readers, *sums)}
        if not changed.isdisjoint(replaced):
            continue
        changed |= replaced
        # Whole passes are saved for one over a vector.
        removed = ["BiasAdd"] * (biased.op == "BiasAdd") + ["BiasAddGrad"] * len(sums)
        shape = graph.result_shape(norm)
        saved = sum(graph.pass_seconds(norm, op, shape, vector) for op in removed)
        seconds = graph.gain(norm, saved, graph.pass_seconds(norm, "AddV2", vector))
        write = functools.partial(_move_bias, biased, bias, norm, vector, sums, readers)
        yield Match(biased, seconds, norm, norm.inputs[0], write)


def _move_bias(
    biased: Node,
    bias: Port,
    norm: Node,
    vector: tuple[int, ...],
    sums: Sequence[Node],
    readers: Sequence[Node],
    new: NewNodes,
) -> None:
    """Add a bias to the mean, and pass the product on instead."""
    if biased.op == "BiasAdd":
        new.pass_on(biased, new.text(biased.inputs[0]))
    else:
        operands = map(new.text, biased.inputs[:2])
        product = parts_of(biased.proto)[0].op
        new.replace(biased, part_of(biased, product, *operands))
    mean = new.text(Port(norm.index, _MEAN))
    terms = mean, new.shaped(bias, vector)
    moved = new.computed("AddV2", "mean", terms, vector)
    for reader in readers:
        new.replace(reader, with_inputs(reader, {mean: moved}))
    for node in sums:
        zeros = new.constant(0.0, DT_FLOAT, vector, anchor=node.inputs[0])
        zeros.device = node.proto.device
        new.replace(node, zeros)


def _bias_of(node: Node) -> Port | None:
    """Return the bias that a node adds, by itself or behind its product."""
    if node.op == "BiasAdd":
        return node.inputs[1]
    parts = [part.op for part in parts_of(node.proto)]
    return node.inputs[2] if parts[1:] == ["BiasAdd"] else None


def _layout(node: Node) -> bytes:
    attrs = node.proto.attr
    # Reading an absent key would create it.
    return bytes(attrs["data_format"].s) if "data_format" in attrs else b"NHWC"


def _gradients_of(norm: Node, view: Graph) -> list[Node] | None:
    """Return its gradients; None if anything else would see that a bias is gone."""
    given, saved = norm.inputs[0], Port(norm.index, _SAVED)
    readers = [r.node for r in view.readers(given) if r.node != norm.index]
    is_read_once = len(readers) == len(view.readers(given)) - 1
    nodes = [view.nodes[i] for i in readers]
    are_gradients = all(
        node.op in _GRADIENTS
        and node.inputs[3] == saved
        and node.inputs.count(given) == 1
        and node.inputs[1] == given
        for node in nodes
    )
    is_hidden = set(readers).issuperset(r.node for r in view.readers(saved))
    return nodes if is_read_once and are_gradients and is_hidden else None
