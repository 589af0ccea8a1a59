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

import dataclasses
from collections.abc import Iterator, Sequence

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT
from tensorflow.python.framework import tensor_util

from grappler_pass.eligibility.fused_ops import part_node
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
    readers_of,
    untouchable_names,
)
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shapes, known_shape
from grappler_pass.graph.type_slots import kernel_exists
from grappler_pass.graph.view import GraphView, Node, Port, device_type_of, port_text
from grappler_pass.pricing.seconds import Models

KERNEL = "_MklLayerNorm"
_MOST_AXES = 3
# What Keras writes that reads or writes whole tensors.
_PASSES = ("Mean", "SquaredDifference", "Mean", "Mul", "Mul", "Mul", "AddV2", "AddV2")
# What the kernel takes for a tensor of any size: on two cores 16 x 64 values take 0.27
# ms, 256 x 256 take 0.5, Keras' operations 0.15 and 0.34.
_CALL_SECONDS = 3e-4
# What is saved must be so many times what is spent: prices are no better than that.
_LEAST_RATIO = 1.5


@dataclasses.dataclass(frozen=True)
class Normalization:
    """One as Keras 3 writes it.

    Attributes:
      x: what is normalized.
      gamma: one value per channel.
      beta: one value per channel.
      epsilon: what is added to the variance.
      nodes: all that lies between, in no order; only the last is read elsewhere.
      shape: static shape of `x`; its last size is known.
      seconds: saved per execution.
    """

    x: Port
    gamma: Port
    beta: Port
    epsilon: float
    nodes: tuple[Node, ...]
    shape: tuple[int | None, ...]
    seconds: float = 0.0

    @property
    def root(self) -> Node:
        """What adds the last of three terms."""
        return self.nodes[-1]


class _OtherwiseError(Exception):
    """It is not what Keras 3 writes."""


def found(view: GraphView, shapes: Shapes, models: Models) -> list[Normalization]:
    """Return the normalizations that one kernel surely computes faster.

    Args:
      view: of the graph.
      shapes: static shapes; what is not known is left as it is.
      models: a cost model per device type, "CPU" at least.
    """
    priced = (_priced(each, view, models) for each in _found(view, shapes))
    return [each for each in priced if each.seconds > 0.0]


def _found(view: GraphView, shapes: Shapes) -> Iterator[Normalization]:
    untouchable = untouchable_names(view)
    types = (("T", int(DT_FLOAT)),)
    for node in view.nodes:
        device = device_type_of(node.device)
        if node.op != "Rsqrt" or device != "CPU":
            continue
        if not kernel_exists(KERNEL, types, device):
            return
        try:
            each = _around(view, shapes, node)
        except _OtherwiseError:
            continue
        if untouchable.isdisjoint(inner.name for inner in each.nodes):
            yield each


def _around(view: GraphView, shapes: Shapes, rsqrt: Node) -> Normalization:
    """Return the normalization that a reciprocal root belongs to.

    Raises:
      _OtherwiseError: it belongs to none.
    """
    summed, variance, difference, mean, epsilon = _statistics(view, rsqrt)
    scale = _required(only_reader(view, rsqrt), "Mul")
    gamma = _present(other_operand(scale, rsqrt))
    negated = _reader(view, mean, "Neg")
    shifted = _required(only_reader(view, negated), "Mul")
    scaled = _other_reader(view, scale, shifted)
    x = _present(other_operand(scaled, scale))
    sums, beta = _sums(view, scaled, shifted)
    inner = (mean, difference, variance, summed, rsqrt, scale, negated, shifted, scaled)
    _check(mean.inputs[0] == x and set(difference.inputs) == {x, Port(mean.index, 0)})
    _check(set(shifted.inputs) == {Port(negated.index, 0), Port(scale.index, 0)})
    _check(set(scaled.inputs) == {x, Port(scale.index, 0)})
    nodes = (*inner, *sums)
    _check(all(node.device == rsqrt.device for node in nodes))
    _check(all(node.proto.attr["T"].type == DT_FLOAT for node in nodes))
    _check(not any(view.control_readers(node.index) for node in nodes[:-1]))
    _check({*readers_of(view, mean)} == {difference.index, negated.index})
    _check({*readers_of(view, scale)} == {shifted.index, scaled.index})
    shape = _checked_shape(view, shapes, x)
    for port in (gamma, beta):
        _check(_is_per_channel(known_shape(shapes, view, port), shape))
    for reduction in (mean, variance):
        _check(_is_over_channels(view, reduction, len(shape)))
    return Normalization(x, gamma, beta, epsilon, nodes, shape)


def _statistics(view: GraphView, rsqrt: Node) -> tuple[Node, Node, Node, Node, float]:
    """Return the sum with epsilon, the variance, what it is of, the mean, epsilon."""
    summed = _required(view.nodes[rsqrt.inputs[0].node], "AddV2", "Add")
    operands = [view.nodes[port.node] for port in summed.inputs]
    variance = next((node for node in operands if node.op == "Mean"), None)
    epsilon = next((node for node in operands if node.op == "Const"), None)
    if variance is None or epsilon is None:
        raise _OtherwiseError
    difference = _required(view.nodes[variance.inputs[0].node], "SquaredDifference")
    means = [view.nodes[port.node] for port in difference.inputs]
    mean = next((node for node in means if node.op == "Mean"), None)
    value = tensor_util.MakeNdarray(epsilon.proto.attr["value"].tensor)
    _check(mean is not None and value.size == 1)
    _check(only_reader(view, summed) is rsqrt)
    _check(only_reader(view, variance) is summed)
    _check(only_reader(view, difference) is variance)
    assert mean is not None
    return summed, variance, difference, mean, float(value.item())


def _sums(
    view: GraphView, scaled: Node, shifted: Node
) -> tuple[tuple[Node, Node], Port]:
    """Return the two nodes that add these terms and a third one, and that."""
    first = _required(only_reader(view, scaled), *ADDITION_OPS)
    second = _required(only_reader(view, shifted), *ADDITION_OPS)
    if first is second:
        _check({port.node for port in first.inputs} == {scaled.index, shifted.index})
        _check(other_operand(first, scaled) is not None)
        last = _required(only_reader(view, first), *ADDITION_OPS)
        return (first, last), _present(other_operand(last, first))
    for inner, last, term in ((second, first, shifted), (first, second, scaled)):
        if only_reader(view, inner) is last:
            _check(other_operand(last, inner) is not None)
            return (inner, last), _present(other_operand(inner, term))
    raise _OtherwiseError


def _check(holds: bool) -> None:
    if not holds:
        raise _OtherwiseError


def _present(port: Port | None) -> Port:
    if port is None:
        raise _OtherwiseError
    return port


def _required(node: Node | None, *ops: str) -> Node:
    if node is None or node.op not in ops:
        raise _OtherwiseError
    return node


def _reader(view: GraphView, node: Node, op: str) -> Node:
    """Return the one reader of a node that is of some op."""
    readers = [view.nodes[i] for i in readers_of(view, node) if view.nodes[i].op == op]
    _check(len(readers) == 1)
    return readers[0]


def _other_reader(view: GraphView, node: Node, reader: Node) -> Node:
    others = [i for i in readers_of(view, node) if i != reader.index]
    _check(len(others) == 1)
    return _required(view.nodes[others[0]], "Mul")


def _checked_shape(view: GraphView, shapes: Shapes, x: Port) -> tuple[int | None, ...]:
    """Return the shape of what is normalized, if the kernel takes it."""
    shape = known_shape(shapes, view, x)
    if shape is None or len(shape) <= 1 or not shape[-1]:
        raise _OtherwiseError
    _check(len(shape) <= _MOST_AXES or (shape.count(None) <= 1 and 0 not in shape))
    return shape


def _is_per_channel(
    given: tuple[int | None, ...] | None, shape: tuple[int | None, ...]
) -> bool:
    if not given or len(given) > len(shape):
        return False
    return given == (*[1] * (len(given) - 1), shape[-1])


def _is_over_channels(view: GraphView, reduction: Node, rank: int) -> bool:
    """Return whether a mean is over the last axis, which it keeps."""
    attrs = reduction.proto.attr
    axes = view.nodes[reduction.inputs[1].node]
    if "keep_dims" not in attrs or not attrs["keep_dims"].b or axes.op != "Const":
        return False
    values = tensor_util.MakeNdarray(axes.proto.attr["value"].tensor)
    return values.size == 1 and int(values.item()) in (-1, rank - 1)


def _priced(found: Normalization, view: GraphView, models: Models) -> Normalization:
    """Return a normalization with what it saves; nothing where that is in doubt."""
    model = model_of(models, found.root)
    saved = sum(pass_seconds(model, op, found.shape) for op in _PASSES)
    channels = found.shape[-1:]
    spent = _CALL_SECONDS + pass_seconds(model, KERNEL, found.shape, channels)
    if saved < _LEAST_RATIO * spent:
        return found
    weight = view.weight(found.root.index)
    return dataclasses.replace(found, seconds=weight * (saved - spent))


def rewritten(
    graph_def: GraphDef, view: GraphView, shapes: Shapes, found: Sequence[Normalization]
) -> tuple[GraphDef, Shapes]:
    """Return a copy of a graph with one kernel for each, and its static shapes.

    Every node keeps its name; what nothing reads any more takes no time.
    """
    made = [_made(each, view, shapes) for each in found]
    return with_new_nodes(graph_def, shapes, made)


def _made(found: Normalization, view: GraphView, shapes: Shapes) -> NewNodes:
    root = found.root
    made = NewNodes(view, shapes, root, found.x)
    channels = found.shape[-1]
    assert channels is not None
    gamma, beta = (made.shaped(port, (channels,)) for port in (found.gamma, found.beta))
    for node in found.nodes[:-1]:
        made.replace(node, handing_on(node, root.name))
        made.shapes[node.name] = found.shape
    x = port_text(view, found.x)
    awaited = sorted({text for node in found.nodes for text in controls(node)})
    if len(found.shape) <= _MOST_AXES:
        made.replace(root, _kernel(found, (x, gamma, beta, *awaited)))
        return made
    rows = (x, made.sizes((-1, channels)))
    x = made.computed("Reshape", "rows", rows, (None, channels))
    kernel = _kernel(found, (x, gamma, beta, *awaited))
    normalized = made.add(kernel, "normalized", (None, channels))
    axes = part_node(root.proto, "Reshape", DT_FLOAT)
    sizes = made.sizes(tuple(-1 if size is None else size for size in found.shape))
    axes.input.extend((normalized, sizes))
    made.replace(root, axes)
    return made


def _kernel(found: Normalization, inputs: Sequence[str]) -> NodeDef:
    node = part_node(found.root.proto, KERNEL, DT_FLOAT)
    node.attr["epsilon"].f = found.epsilon
    node.input.extend(inputs)
    return node
