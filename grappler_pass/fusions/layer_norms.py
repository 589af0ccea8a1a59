"""Normalize the last axis by one kernel where Keras 3 takes eight passes.

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
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from tensorflow.core.framework.types_pb2 import DT_FLOAT
from tensorflow.python.framework import tensor_util

from grappler_pass.errors import AmpError
from grappler_pass.fusions.new_nodes import NewNodes, controls, part_of
from grappler_pass.fusions.passes import PricedGraph, other_operand
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shape
from grappler_pass.graph.type_slots import attr_of, kernel_exists
from grappler_pass.graph.view import Node, Port, port_text

KERNEL = "_MklLayerNorm"
_MOST_AXES = 3
# What Keras writes that reads or writes whole tensors.
_PASSES = ("Mean", "SquaredDifference", "Mean", "Mul", "Mul", "Mul", "AddV2", "AddV2")
# What the kernel takes for a tensor of any size: on two cores 16 x 64 values take 0.27
# ms, 256 x 256 take 0.5, Keras' operations 0.15 and 0.34.
_CALL_SECONDS = 3e-4
# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 1.5


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


_Found = TypeVar("_Found")


class _OtherwiseError(AmpError):
    """It is not what Keras 3 writes."""


def found(graph: PricedGraph) -> Iterator[Normalization]:
    """Yield the normalizations that the kernel takes."""
    types = (("T", int(DT_FLOAT)),)
    for node in graph.view.nodes:
        if node.op != "Rsqrt" or node.device_type != "CPU":
            continue
        if not kernel_exists(KERNEL, types, node.device_type):
            return
        try:
            each = _around(graph, node)
        except _OtherwiseError:
            continue
        if graph.may_change(*each.nodes):
            yield each


def _around(graph: PricedGraph, rsqrt: Node) -> Normalization:
    """Return the normalization that a reciprocal root belongs to, or raise."""
    summed, variance, difference, mean, epsilon = _statistics(graph, rsqrt)
    scale = _present(graph.only_reader(rsqrt, "Mul"))
    gamma = _present(other_operand(scale, rsqrt))
    negated = _reader(graph, mean, "Neg")
    shifted = _present(graph.only_reader(negated, "Mul"))
    scaled = _reader(graph, scale, "Mul", beside=shifted)
    x = _present(other_operand(scaled, scale))
    sums, beta = _sums(graph, scaled, shifted)
    inner = (mean, difference, variance, summed, rsqrt, scale, negated, shifted, scaled)
    _check(mean.inputs[0] == x and set(difference.inputs) == {x, Port(mean.index, 0)})
    _check(set(shifted.inputs) == {Port(negated.index, 0), Port(scale.index, 0)})
    _check(set(scaled.inputs) == {x, Port(scale.index, 0)})
    nodes = (*inner, *sums)
    _check(all(node.place == rsqrt.place for node in nodes))
    _check(all(node.proto.attr["T"].type == DT_FLOAT for node in nodes))
    _check(not any(graph.view.control_readers(node.index) for node in nodes[:-1]))
    for node, readers in ((mean, (difference, negated)), (scale, (shifted, scaled))):
        found = {each.index for each in graph.readers(node)}
        _check(found == {each.index for each in readers})
    shape = _present(graph.shape(x))
    _check(len(shape) > 1 and bool(shape[-1]))
    _check(len(shape) <= _MOST_AXES or (shape.count(None) <= 1 and 0 not in shape))
    channels = _present(shape[-1])
    for port in (gamma, beta):
        _check(graph.is_per_channel(port, channels, len(shape)))
    for reduction in (mean, variance):
        _check(_is_over_channels(graph, reduction, len(shape)))
    return Normalization(x, gamma, beta, epsilon, nodes, shape, channels)


def _statistics(
    graph: PricedGraph, rsqrt: Node
) -> tuple[Node, Node, Node, Node, float]:
    """Return the sum with epsilon, the variance, what it is of, the mean, epsilon."""
    summed = _operand(graph, rsqrt, "AddV2", "Add")
    variance = _operand(graph, summed, "Mean")
    epsilon = _operand(graph, summed, "Const")
    difference = graph.view.nodes[variance.inputs[0].node]
    _check(difference.op == "SquaredDifference")
    mean = _operand(graph, difference, "Mean")
    value = tensor_util.MakeNdarray(epsilon.proto.attr["value"].tensor)
    _check(value.size == 1)
    _check(graph.only_reader(summed) is rsqrt)
    _check(graph.only_reader(variance) is summed)
    _check(graph.only_reader(difference) is variance)
    return summed, variance, difference, mean, float(value.item())


def _sums(
    graph: PricedGraph, scaled: Node, shifted: Node
) -> tuple[tuple[Node, Node], Port]:
    """Return the two nodes that add these terms and a third one, and that."""
    first = _present(graph.only_reader(scaled, *ADDITION_OPS))
    second = _present(graph.only_reader(shifted, *ADDITION_OPS))
    if first is second:
        _check({port.node for port in first.inputs} == {scaled.index, shifted.index})
        _present(other_operand(first, scaled))
        last = _present(graph.only_reader(first, *ADDITION_OPS))
        return (first, last), _present(other_operand(last, first))
    for inner, last, term in ((second, first, shifted), (first, second, scaled)):
        if graph.only_reader(inner) is last:
            _present(other_operand(last, inner))
            return (inner, last), _present(other_operand(inner, term))
    raise _OtherwiseError


def _check(holds: bool) -> None:
    if not holds:
        raise _OtherwiseError


def _present(found: _Found | None) -> _Found:
    if found is None:
        raise _OtherwiseError
    return found


def _operand(graph: PricedGraph, node: Node, *ops: str) -> Node:
    """Return the first operand that is the result of one of some ops."""
    operands = (graph.view.nodes[port.node] for port in node.inputs)
    return _present(next((each for each in operands if each.op in ops), None))


def _reader(
    graph: PricedGraph, node: Node, op: str, beside: Node | None = None
) -> Node:
    """Return the one reader of a node that is of some op, beside another one."""
    readers = [
        each for each in graph.readers(node) if each.op == op and each is not beside
    ]
    _check(len(readers) == 1)
    return readers[0]


def _is_over_channels(graph: PricedGraph, reduction: Node, rank: int) -> bool:
    """Return whether a mean is over the last axis, which it keeps."""
    axes = graph.view.nodes[reduction.inputs[1].node]
    if not attr_of(reduction.proto, "keep_dims").b or axes.op != "Const":
        return False
    values = tensor_util.MakeNdarray(axes.proto.attr["value"].tensor)
    return values.size == 1 and int(values.item()) in (-1, rank - 1)


def seconds(found: Normalization, graph: PricedGraph) -> float:
    """Return what one kernel saves per step; 0.0 where that is in doubt."""
    root, shape = found.root, found.shape
    saved = sum(graph.pass_seconds(root, op, shape) for op in _PASSES)
    kernel = graph.pass_seconds(root, KERNEL, shape, (found.channels,))
    return graph.gain(root, saved, _CALL_SECONDS + kernel, _LEAST_RATIO)


def made(found: Normalization, graph: PricedGraph) -> NewNodes:
    """Return one kernel for all; what nothing reads any more takes no time."""
    root, channels = found.root, found.channels
    new = NewNodes(graph, root, found.x)
    gamma, beta = (new.shaped(port, (channels,)) for port in (found.gamma, found.beta))
    for node in found.nodes[:-1]:
        new.hand_on(node, root.name)
        new.shapes[node.name] = found.shape
    x = port_text(graph.view, found.x)
    is_folded = len(found.shape) > _MOST_AXES
    if is_folded:
        rows = (x, new.sizes((-1, channels)))
        x = new.computed("Reshape", "rows", rows, (None, channels))
    awaited = sorted({text for node in found.nodes for text in controls(node)})
    kernel = part_of(root, KERNEL, x, gamma, beta, *awaited)
    kernel.attr["epsilon"].f = found.epsilon
    if is_folded:
        normalized = new.add(kernel, "normalized", (None, channels))
        sizes = new.sizes(tuple(-1 if size is None else size for size in found.shape))
        kernel = part_of(root, "Reshape", normalized, sizes)
    new.replace(root, kernel)
    return new
