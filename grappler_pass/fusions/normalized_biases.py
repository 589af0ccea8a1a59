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

import dataclasses
from collections.abc import Iterator, Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT
from tensorflow.python.framework import tensor_util

from grappler_pass.eligibility.fused_ops import part_node, parts_of
from grappler_pass.fusions.new_nodes import NewNodes, handing_on, with_new_nodes
from grappler_pass.fusions.passes import model_of, pass_seconds, untouchable_names
from grappler_pass.graph.shapes import Shapes, known_shape
from grappler_pass.graph.view import GraphView, Node, Port, port_text
from grappler_pass.pricing.seconds import Models

_NORMS = ("FusedBatchNormV3", "_FusedBatchNormEx")
_GRADIENTS = ("FusedBatchNormGradV3", "_FusedBatchNormGradEx")
# Of a normalization: inputs, and outputs.
_INPUT, _MEAN, _SAVED = 0, 1, 3
# Of its gradient.
_GRADIENT_INPUT, _GRADIENT_SAVED = 1, 3


@dataclasses.dataclass(frozen=True)
class NormalizedBias:
    """A bias in front of a normalization.

    Attributes:
      biased: adds it, by itself or behind the product in one kernel.
      bias: one value per channel.
      norm: reads what it gives.
      channels: how many.
      sums: gradients of the bias.
      readers: of the mean.
      seconds: saved per execution.
    """

    biased: Node
    bias: Port
    norm: Node
    channels: int
    sums: tuple[Node, ...]
    readers: tuple[Node, ...] = ()
    seconds: float = 0.0

    @property
    def root(self) -> Node:
        """What it begins with."""
        return self.biased

    @property
    def replaced(self) -> frozenset[str]:
        """The names of nodes that are others afterwards."""
        nodes = (self.biased, *self.readers, *self.sums)
        return frozenset(node.name for node in nodes)


def found(view: GraphView, shapes: Shapes, models: Models) -> list[NormalizedBias]:
    """Return what can be done and surely pays.

    Args:
      view: of the graph.
      shapes: static shapes; of channels that are not known nothing is done.
      models: a cost model per device type, "CPU" at least.
    """
    priced = (_priced(each, view, shapes, models) for each in _found(view, shapes))
    return [each for each in priced if each.seconds > 0.0]


def _found(view: GraphView, shapes: Shapes) -> Iterator[NormalizedBias]:
    untouchable = untouchable_names(view)
    changed: set[str] = set()
    for norm in view.nodes:
        if norm.op not in _NORMS or not _is_of_batch(norm):
            continue
        each = _bias_of(norm, view, shapes)
        if each is None or {each.biased.name, norm.name} & untouchable:
            continue
        own = tuple(node for node in each.sums if node.name not in untouchable)
        each = dataclasses.replace(each, sums=own, readers=_readers(norm, view))
        if changed.isdisjoint(each.replaced):
            changed |= each.replaced
            yield each


def _readers(norm: Node, view: GraphView) -> tuple[Node, ...]:
    """Return what reads the mean of a batch."""
    readers = view.readers(Port(norm.index, _MEAN))
    return tuple(view.nodes[i] for i in dict.fromkeys(r.node for r in readers))


def _is_of_batch(norm: Node) -> bool:
    attrs = norm.proto.attr
    # Reading an absent key would create it.
    is_training = "is_training" not in attrs or attrs["is_training"].b
    factor = "exponential_avg_factor"
    is_plain = factor not in attrs or attrs[factor].f == 1.0
    return bool(is_training and is_plain and attrs["T"].type == DT_FLOAT)


def _bias_of(norm: Node, view: GraphView, shapes: Shapes) -> NormalizedBias | None:
    port = norm.inputs[_INPUT]
    biased = view.nodes[port.node]
    is_fused = [part.op for part in parts_of(biased.proto)][1:] == ["BiasAdd"]
    if not is_fused and biased.op != "BiasAdd":
        return None
    if biased.device != norm.device or _layout(biased) != _layout(norm):
        return None
    bias = biased.inputs[2 if is_fused else 1]
    shape = known_shape(shapes, view, bias)
    channels = shape[-1] if shape else None
    gradients = _gradients_of(norm, view)
    if gradients is None or shape is None or not channels:
        return None
    if any(size != 1 for size in shape[:-1]):
        return None
    sums = tuple(
        view.nodes[reader.node]
        for gradient in gradients
        for reader in view.readers(Port(gradient.index, 0))
        if view.nodes[reader.node].op == "BiasAddGrad"
        and _layout(view.nodes[reader.node]) == _layout(norm)
    )
    return NormalizedBias(biased, bias, norm, channels, sums)


def _layout(node: Node) -> bytes:
    attrs = node.proto.attr
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


def _priced(
    each: NormalizedBias, view: GraphView, shapes: Shapes, models: Models
) -> NormalizedBias:
    """Return what is found with what it saves: whole passes for one over a vector."""
    model = model_of(models, each.norm)
    shape, vector = (
        known_shape(shapes, view, Port(each.norm.index, 0)),
        (each.channels,),
    )
    own = ["BiasAdd"] if each.biased.op == "BiasAdd" else []
    removed = [*own, *("BiasAddGrad" for _ in each.sums)]
    saved = sum(pass_seconds(model, op, shape, vector) for op in removed)
    spent = pass_seconds(model, "AddV2", vector)
    weight = view.weight(each.norm.index)
    return dataclasses.replace(each, seconds=weight * (saved - spent))


def rewritten(
    graph_def: GraphDef,
    view: GraphView,
    shapes: Shapes,
    found: Sequence[NormalizedBias],
) -> tuple[GraphDef, Shapes]:
    """Return a copy of a graph without these biases, and its static shapes.

    Every node keeps its name; what added the bias hands the product on.
    """
    return with_new_nodes(
        graph_def, shapes, [_made(each, view, shapes) for each in found]
    )


def _made(each: NormalizedBias, view: GraphView, shapes: Shapes) -> NewNodes:
    made = NewNodes(view, shapes, each.norm, each.norm.inputs[_INPUT])
    made.replace(each.biased, _without_bias(each, view))
    vector = (each.channels,)
    mean = port_text(view, Port(each.norm.index, _MEAN))
    terms = mean, made.shaped(each.bias, vector)
    moved = made.computed("AddV2", "mean", terms, vector)
    for reader in each.readers:
        made.replace(reader, _reading(reader, mean, moved))
    for node in each.sums:
        made.replace(node, _zeros(node, view, vector))
    return made


def _without_bias(each: NormalizedBias, view: GraphView) -> NodeDef:
    biased = each.biased
    if biased.op == "BiasAdd":
        return handing_on(biased, port_text(view, biased.inputs[0]))
    made = part_node(biased.proto, parts_of(biased.proto)[0].op, DT_FLOAT)
    made.input.extend(port_text(view, port) for port in biased.inputs[:2])
    return made


def _reading(reader: Node, given: str, other: str) -> NodeDef:
    """Return the same operation on another value."""
    made = NodeDef()
    made.CopyFrom(reader.proto)
    inputs = [other if text == given else text for text in made.input]
    made.ClearField("input")
    made.input.extend(inputs)
    return made


def _zeros(node: Node, view: GraphView, shape: tuple[int, ...]) -> NodeDef:
    """Return zeros in the place of a node, in its loop if it is in one."""
    made = NodeDef(op="Const", device=node.proto.device)
    made.input.append(f"^{view.nodes[node.inputs[0].node].name}")
    value = tensor_util.make_tensor_proto(0.0, DT_FLOAT, shape)
    made.attr["value"].tensor.CopyFrom(value)
    made.attr["dtype"].type = DT_FLOAT
    return made
