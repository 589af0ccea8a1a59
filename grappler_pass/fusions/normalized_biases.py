"""Take a bias out of what is normalized by the statistics of its batch.

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

from collections.abc import Iterator
from typing import NamedTuple

from tensorflow.core.framework.types_pb2 import DT_FLOAT

from grappler_pass.eligibility.fused_ops import parts_of
from grappler_pass.fusions.new_nodes import NewNodes, constant, part_of, with_inputs
from grappler_pass.fusions.passes import PricedGraph
from grappler_pass.graph.type_slots import attr_of
from grappler_pass.graph.view import GraphView, Node, Port, port_text

_NORMS = ("FusedBatchNormV3", "_FusedBatchNormEx")
_GRADIENTS = ("FusedBatchNormGradV3", "_FusedBatchNormGradEx")
# By how much the kernel averages statistics itself.
_FACTOR = "exponential_avg_factor"
# Of a normalization: inputs, and outputs.
_INPUT, _MEAN, _SAVED = 0, 1, 3
# Of its gradient.
_GRADIENT_INPUT, _GRADIENT_SAVED = 1, 3


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


def found(graph: PricedGraph) -> Iterator[NormalizedBias]:
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


def seconds(found: NormalizedBias, graph: PricedGraph) -> float:
    """Return what is saved per step: whole passes for one over a vector."""
    norm, vector = found.norm, (found.channels,)
    own = ["BiasAdd"] if found.root.op == "BiasAdd" else []
    removed = [*own, *("BiasAddGrad" for _ in found.sums)]
    shape = graph.result_shape(norm)
    saved = sum(graph.pass_seconds(norm, op, shape, vector) for op in removed)
    return graph.gain(norm, saved, graph.pass_seconds(norm, "AddV2", vector))


def made(found: NormalizedBias, graph: PricedGraph) -> NewNodes:
    """Return what adds the bias to the mean, and hands the product on instead."""
    norm, view, vector = found.norm, graph.view, (found.channels,)
    new = NewNodes(graph, norm, norm.inputs[_INPUT])
    _take_out(found, view, new)
    mean = port_text(view, Port(norm.index, _MEAN))
    terms = mean, new.shaped(found.bias, vector)
    moved = new.computed("AddV2", "mean", terms, vector)
    for reader in found.readers:
        new.replace(reader, with_inputs(reader, {mean: moved}))
    for node in found.sums:
        zeros = constant(view, node.inputs[0], 0.0, DT_FLOAT, vector)
        zeros.device = node.proto.device
        new.replace(node, zeros)
    return new


def _take_out(found: NormalizedBias, view: GraphView, new: NewNodes) -> None:
    biased = found.root
    if biased.op == "BiasAdd":
        new.hand_on(biased, port_text(view, biased.inputs[0]))
        return
    operands = (port_text(view, port) for port in biased.inputs[:2])
    new.replace(biased, part_of(biased, parts_of(biased.proto)[0].op, *operands))
