"""A graph as the rules see it, patterns in it, and what is put in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32

from grappler_pass.annotations import mark
from grappler_pass.costs import CostModel, OpCall, TensorSpec
from grappler_pass.eligibility.fused_ops import part_node
from grappler_pass.graph.editing import name_in, new_constant, new_node
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.planning.prices import NODE_SECONDS, Models

# What is computed of constants.
_FOLDED: dict[str, Callable[..., np.ndarray]] = {
    "Mul": np.multiply,
    "AddV2": np.add,
    "Reshape": np.reshape,
}
# Whose operands may stand in either order.
_COMMUTATIVE = ADDITION_OPS | {"Mul", "SquaredDifference"}


@dataclasses.dataclass(frozen=True)
class PricedGraph:
    """A graph with what is known of it.

    Attributes:
      view: of the graph.
      shapes: static shapes; nothing is done where they are not known.
      models: a cost model per device type, "CPU" at least.
      kept: what is kept between calls, with what is computed of it alone.
      onednn: whether TensorFlow's kernels of oneDNN are on.
      low_dtype: that the plan may choose.
    """

    view: Graph
    shapes: Shapes
    models: Models
    kept: Set[Port] = frozenset()
    onednn: bool = True
    low_dtype: str = "bfloat16"

    def shape(self, port: Port) -> Shape | None:
        """Return the static shape of a tensor; None where it is unknown."""
        return known_shape(self.shapes, self.view, port)

    def result_shape(self, node: Node) -> Shape | None:
        """Return the static shape of a node's first output."""
        return self.shape(Port(node.index, 0))

    def is_per_channel(self, port: Port, channels: int, most_axes: int) -> bool:
        """Return whether a tensor holds one value for each of the last axis."""
        shape = self.shape(port)
        if not shape or len(shape) > most_axes:
            return False
        return shape == (*[1] * (len(shape) - 1), channels)

    def model(self, node: Node) -> CostModel:
        """Return the cost model of a node's device."""
        return self.models.get(node.device_type) or self.models["CPU"]

    def pass_seconds(
        self,
        node: Node,
        op: str,
        shape: Shape | None,
        other: Shape | None = None,
        *,
        writes: bool = True,
    ) -> float:
        """Return what a float32 operation takes where a node runs.

        Args:
          node: on whose device.
          op: reads two tensors, and writes one like the first.
          shape: of the first.
          other: of the second; of the same shape if None.
          writes: whether the operation has a result.
        """
        whole = TensorSpec(shape, "float32")
        operand = TensorSpec(shape if other is None else other, "float32")
        call = OpCall(op, {}, (whole, operand), (whole,) if writes else ())
        return self.model(node).price(call, "float32").seconds + NODE_SECONDS

    def product_seconds(
        self,
        node: Node,
        sizes: tuple[int, int, int],
        dtype: str = "float32",
        **transposes: bool,
    ) -> float:
        """Return what a matrix product takes where a node runs.

        Args:
          node: on whose device.
          sizes: rows of the product, what it sums over, and its columns.
          dtype: of the product.
          transposes: its attributes.
        """
        m, k, n = sizes
        left = (k, m) if transposes.get("transpose_a") else (m, k)
        right = (n, k) if transposes.get("transpose_b") else (k, n)
        read = TensorSpec(left, "float32"), TensorSpec(right, "float32")
        call = OpCall("MatMul", transposes, read, (TensorSpec((m, n), "float32"),))
        return self.model(node).price(call, dtype).seconds + NODE_SECONDS

    def gain(
        self, node: Node, saved: float, spent: float, least_ratio: float = 1.0
    ) -> float:
        """Return the seconds that a rewrite saves per step; 0.0 if uncertain.

        Args:
          node: runs as often as what is rewritten.
          saved: seconds of one run.
          spent: seconds of one run.
          least_ratio: of the two: prices are no better than that.
        """
        if saved < least_ratio * spent:
            return 0.0
        return self.view.weight(node.index) * (saved - spent)

    def may_change(self, *nodes: Node) -> bool:
        """Return whether none belongs to the caller, or is excluded from 16 bits."""
        item = self.view.item
        names = {node.name for node in nodes}
        excluded = (name for name, _ in item.excluded)
        return names.isdisjoint(item.untouchable) and names.isdisjoint(excluded)


class Found(NamedTuple):
    """What the names of a pattern stand for.

    Attributes:
      ports: by each name.
      nodes: by each name that has a line, in the order of the lines.
    """

    ports: Mapping[str, Port]
    nodes: Mapping[str, Node]


class _Line(NamedTuple):
    """A node of a pattern: its name, its ops, and what it reads."""

    name: str
    ops: frozenset[str]
    operands: tuple[str, ...]


class Pattern:
    """Nodes that compute with each other, one in a line: `name = Op|Op(operand, ...)`.

    What commutes may have its operands in any order. A name with a line of its own is a
    node; all of them are float32 on one device, and only nodes of the pattern read them
    or wait for them, but for the last one. Any other name stands for any other tensor.
    """

    def __init__(self, text: str, **ops: Iterable[str]) -> None:
        """Read a pattern; `ops` are names that stand for several ops."""
        self._lines: list[_Line] = []
        for line in filter(None, map(str.strip, text.splitlines())):
            name, call = line.split(" = ")
            op, operands = call.removesuffix(")").split("(")
            known = frozenset(ops.get(op, op.split("|")))
            self._lines.append(_Line(name, known, tuple(operands.split(", "))))

    def match(self, graph: PricedGraph, name: str, node: Node) -> Found | None:
        """Return what is found where one of the names is a node, if anything."""
        for ports in self._extended(graph, {name: Port(node.index, 0)}, self._lines):
            lines = (line.name for line in self._lines)
            found = Found(ports, {n: graph.view.nodes[ports[n].node] for n in lines})
            if _is_closed(graph, found):
                return found
        return None

    def _extended(
        self, graph: PricedGraph, match: dict[str, Port], lines: Sequence[_Line]
    ) -> Iterator[dict[str, Port]]:
        """Yield all ways to match further lines, one after another that is reached."""
        if not lines:
            yield match
            return
        reached = {line.name for line in self._lines} & match.keys()
        line = next(e for e in lines if reached.intersection((e.name, *e.operands)))
        others = [each for each in lines if each is not line]
        if line.name in reached:
            numbers: Iterable[int] = (match[line.name].node,)
        else:
            operand = next(name for name in line.operands if name in reached)
            numbers = dict.fromkeys(graph.view.read_by(match[operand].node))
        for i in numbers:
            node = graph.view.nodes[i]
            if node.op not in line.ops or len(node.inputs) != len(line.operands):
                continue
            orders = [node.inputs]
            if node.op in _COMMUTATIVE and len(node.inputs) == 2:
                orders.append(node.inputs[::-1])
            for inputs in orders:
                pairs = dict(zip(line.operands, inputs, strict=True))
                pairs[line.name] = Port(i, 0)
                if all(match.get(name, port) == port for name, port in pairs.items()):
                    yield from self._extended(graph, {**match, **pairs}, others)


def _is_closed(graph: PricedGraph, found: Found) -> bool:
    """Return whether distinct nodes of one kind hide all but the last from others."""
    nodes = list(found.nodes.values())
    own = {node.index for node in nodes}
    others = (
        port.node for name, port in found.ports.items() if name not in found.nodes
    )
    return (
        len(own) == len(nodes)
        and own.isdisjoint(others)
        and len({node.place for node in nodes}) == 1
        and all(is_float32(node) for node in nodes)
        and not any(
            graph.view.control_readers(node.index)
            or not own.issuperset(graph.view.read_by(node.index))
            for node in nodes[:-1]
        )
    )


def is_float32(node: Node) -> bool:
    """Return whether a node of one type computes in float32."""
    # `in` first: reading a missing key of a protobuf map creates it.
    attrs = node.proto.attr
    return "T" in attrs and bool(attrs["T"].type == DT_FLOAT)


def scalar_of(view: Graph, port: Port) -> float | None:
    """Return the value of a constant of one element; None for any other tensor."""
    node = view.nodes[port.node]
    if node.op != "Const":
        return None
    value = tf.make_ndarray(node.proto.attr["value"].tensor)
    return float(value.item()) if value.size == 1 else None


class Match(NamedTuple):
    """Where a rule applies.

    Attributes:
      root: what it begins with.
      seconds: that the rule saves per step; 0.0 where that is uncertain.
      near: further nodes are called after it, and are on its device.
      anchor: what it reads; constants wait for that, and so are in its loop.
      write: puts nodes in the place of it, under the names of all that are replaced.
    """

    root: Node
    seconds: float
    near: Node
    anchor: Port
    write: Callable[[NewNodes], None]


@dataclasses.dataclass
class NewNodes:
    """The nodes of one rewrite.

    Attributes:
      graph: that they are for.
      edited: the same, as it becomes.
      shapes: of all nodes of the graph, by name; those of new ones are put in.
      match: in the place of which they are put.
    """

    graph: PricedGraph
    edited: Graph
    shapes: dict[str, tuple[Shape | None, ...]]
    match: Match
    _count: int = 0

    def text(self, port: Port) -> str:
        """Return how inputs name a tensor of the graph."""
        return self.graph.view.text(port)

    def replace(self, given: Node, made: NodeDef) -> NodeDef:
        """Put a node in the place of a given one, under its name."""
        made.name = given.name
        made.input.extend(text for text in controls(given) if text not in made.input)
        mark(made, given.proto)
        self.edited.put(made)
        return made

    def pass_on(self, given: Node, name: str) -> None:
        """Have a given node pass on the float32 result of another."""
        self.replace(given, part_of(given, "Identity", name))

    def add(self, node: NodeDef, what: str, shape: Shape | None) -> str:
        """Take in a further node, and return its name."""
        name = f"{self.match.near.name}/tf_amp_{self._count}_{what}"
        self._count += 1
        node.name = self.edited.unused(name)
        node.device = self.match.near.device
        mark(node, self.match.near.proto)
        self.shapes[node.name] = (shape,)
        return self.edited.add(node)

    def computed(self, op: str, what: str, inputs: Sequence[str], shape: Shape) -> str:
        """Take in a further float32 operation, and return its name.

        Of constants alone that is a constant, too: its result.
        """
        nodes = [self.edited.proto(name_in(text)) for text in inputs]
        if all(node.op == "Const" for node in nodes):
            values = (tf.make_ndarray(node.attr["value"].tensor) for node in nodes)
            return self.add(self.constant(_FOLDED[op](*values), DT_FLOAT), what, shape)
        types = {"Tshape": DT_INT32} if op == "Reshape" else {}
        return self.add(new_node(op, inputs=inputs, T=DT_FLOAT, **types), what, shape)

    def shaped(self, port: Port, shape: tuple[int, ...]) -> str:
        """Return what holds the values of a port in some shape."""
        text = self.text(port)
        if self.graph.shape(port) == shape:
            return text
        return self.computed("Reshape", "values", (text, self.sizes(shape)), shape)

    def sizes(self, shape: tuple[int, ...]) -> str:
        """Return a constant that holds a shape."""
        return self.add(self.constant(shape, DT_INT32), "shape", (len(shape),))

    def constant(
        self,
        value: float | Sequence[int] | np.ndarray,
        dtype: int,
        shape: Sequence[int] | None = None,
        anchor: Port | None = None,
    ) -> NodeDef:
        """Return a constant that waits for an anchor, and so is in its loop."""
        awaited = self.graph.view.nodes[(anchor or self.match.anchor).node].name
        return new_constant("", value, dtype, shape, inputs=[f"^{awaited}"])


def controls(node: Node) -> list[str]:
    """Return the control inputs of a node."""
    return [text for text in node.proto.input if text.startswith("^")]


def part_of(node: Node, op: str, *inputs: str) -> NodeDef:
    """Return a float32 node of `op` with a node's device and what attributes fit."""
    made = part_node(node.proto, op, DT_FLOAT)
    made.input.extend(inputs)
    return made


def with_inputs(node: Node, others: dict[str, str]) -> NodeDef:
    """Return the same operation on other values, by the names of those given."""
    made = NodeDef()
    made.CopyFrom(node.proto)
    made.input[:] = [others.get(text, text) for text in made.input]
    return made
