"""A graph as the rules see it, patterns in it, and what is put in their place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.framework.tensor_pb2 import TensorProto
from tensorflow.core.framework.types_pb2 import DT_FLOAT, DT_INT32

from grappler_pass.annotations import mark
from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.costs import CostModel, OpCall, TensorSpec
from grappler_pass.eligibility.fused_ops import part_node
from grappler_pass.graph.editing import Graph, new_constant, new_node
from grappler_pass.graph.op_table import ADDITION_OPS
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.view import GraphView, Node, Port, port_text
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
    """

    view: GraphView
    shapes: Shapes
    models: Models
    kept: Set[Port] = frozenset()

    def shape(self, port: Port) -> Shape | None:
        """Return the static shape of a tensor; None where it is unknown."""
        return known_shape(self.shapes, self.view, port)

    def result_shape(self, node: Node) -> Shape | None:
        """Return the static shape of a node's first output."""
        return self.shape(Port(node.index, 0))

    def is_constant(self, port: Port) -> bool:
        """Return whether a tensor is in the graph itself."""
        return self.view.nodes[port.node].op == "Const"

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
        self, node: Node, op: str, shape: Shape | None, other: Shape | None = None
    ) -> float:
        """Return what a float32 operation takes where a node runs.

        Args:
          node: on whose device.
          op: reads two tensors, and writes one like the first.
          shape: of the first.
          other: of the second; of the same shape if None.
        """
        whole = TensorSpec(shape, "float32")
        operand = TensorSpec(shape if other is None else other, "float32")
        call = OpCall(op, {}, (whole, operand), (whole,))
        return self.model(node).price(call, "float32").seconds + NODE_SECONDS

    def gain(
        self, node: Node, saved: float, spent: float, least_ratio: float = 1.0
    ) -> float:
        """Return the seconds that a rewrite saves per step; 0.0 if that is in doubt.

        Args:
          node: runs as often as what is rewritten.
          saved: seconds of one run.
          spent: seconds of one run.
          least_ratio: of the two: prices are no better than that.
        """
        if saved < least_ratio * spent:
            return 0.0
        return self.view.weight(node.index) * (saved - spent)

    @cached_attribute
    def _untouchable(self) -> frozenset[str]:
        item = self.view.item
        return item.untouchable | {name for name, _ in item.excluded}

    def may_change(self, *nodes: Node) -> bool:
        """Return whether none belongs to the caller, or is excluded by the user."""
        return self._untouchable.isdisjoint(node.name for node in nodes)

    def readers(self, node: Node) -> tuple[Node, ...]:
        """Return the nodes that read a node, each once."""
        return self.distinct(self.view.read_by(node.index))

    def distinct(self, numbers: Iterable[int]) -> tuple[Node, ...]:
        """Return nodes by number, each once."""
        return tuple(self.view.nodes[i] for i in dict.fromkeys(numbers))

    def only_reader(self, node: Node, *ops: str) -> Node | None:
        """Return what alone reads a node, if nothing waits for it, and is one of ops.

        Args:
          node: that is read.
          ops: names; any if there is none.
        """
        readers = self.readers(node)
        if len(readers) != 1 or self.view.control_readers(node.index):
            return None
        return readers[0] if not ops or readers[0].op in ops else None


def other_operand(node: Node, operand: Node) -> Port | None:
    """Return what a node reads beside the result of another; None if no more."""
    others = [port for port in node.inputs if port.node != operand.index]
    return others[0] if len(others) == len(node.inputs) - 1 == 1 else None


class _Line(NamedTuple):
    """A node of a pattern: its name, its ops, and what it reads."""

    name: str
    ops: frozenset[str]
    operands: tuple[str, ...]


class Pattern:
    """Nodes that compute with each other, one in a line: `name = Op|Op(operand, ...)`.

    What commutes may have its operands in any order. A name with a line of its own is a
    node; only nodes of the pattern read it or wait for it, but for the last one. Any
    other name stands for any tensor.
    """

    def __init__(self, text: str, **ops: Iterable[str]) -> None:
        """Read a pattern; `ops` are names that stand for several ops."""
        self._lines: list[_Line] = []
        for line in filter(None, map(str.strip, text.splitlines())):
            name, call = line.split(" = ")
            op, operands = call.removesuffix(")").split("(")
            known = frozenset(ops.get(op, op.split("|")))
            self._lines.append(_Line(name, known, tuple(operands.split(", "))))
        self._inner = {line.name for line in self._lines}

    def match(self, graph: PricedGraph, name: str, node: Node) -> dict[str, Port]:
        """Return what the names stand for if one of them is a node; else nothing."""
        found = self._extended(graph, {name: Port(node.index, 0)}, self._lines)
        return next((each for each in found if self._is_closed(graph, each)), {})

    def nodes(self, graph: PricedGraph, match: Mapping[str, Port]) -> tuple[Node, ...]:
        """Return the nodes of a match in the order of the lines."""
        return tuple(graph.view.nodes[match[line.name].node] for line in self._lines)

    def _extended(
        self, graph: PricedGraph, match: dict[str, Port], lines: Sequence[_Line]
    ) -> Iterator[dict[str, Port]]:
        """Yield all ways to match further lines, one after another that is reached."""
        if not lines:
            yield match
            return
        line = next(each for each in lines if self._hangs_on(each, match))
        others = [each for each in lines if each is not line]
        for node in self._candidates(graph, match, line):
            for operands in _orders(node):
                pairs = dict(zip(line.operands, operands, strict=False))
                pairs[line.name] = Port(node.index, 0)
                agree = all(match.get(n, port) == port for n, port in pairs.items())
                if agree and len(operands) == len(line.operands):
                    yield from self._extended(graph, {**match, **pairs}, others)

    def _hangs_on(self, line: _Line, match: Mapping[str, Port]) -> bool:
        known = self._inner & match.keys()
        return line.name in known or not known.isdisjoint(line.operands)

    def _candidates(
        self, graph: PricedGraph, match: Mapping[str, Port], line: _Line
    ) -> Iterator[Node]:
        """Yield the nodes that a line may stand for."""
        if line.name in match:
            nodes = iter([graph.view.nodes[match[line.name].node]])
        else:
            known = next(o for o in line.operands if o in self._inner & match.keys())
            nodes = iter(graph.readers(graph.view.nodes[match[known].node]))
        return (node for node in nodes if node.op in line.ops)

    def _is_closed(self, graph: PricedGraph, match: Mapping[str, Port]) -> bool:
        """Return whether others read, and wait for, the last node alone."""
        nodes = self.nodes(graph, match)
        own = {node.index for node in nodes}
        return len(own) == len(nodes) and not any(
            graph.view.control_readers(node.index)
            or not own.issuperset(graph.view.read_by(node.index))
            for node in nodes[:-1]
        )


def _orders(node: Node) -> Iterator[tuple[Port, ...]]:
    yield node.inputs
    if node.op in _COMMUTATIVE and len(node.inputs) == 2:
        yield node.inputs[::-1]


class Match(Protocol):
    """What a rule has found in a graph."""

    @property
    def root(self) -> Node:
        """What it begins with."""

    def seconds(self, graph: PricedGraph) -> float:
        """Return what the rule saves per step; 0.0 where that is uncertain."""

    def write(
        self, graph: PricedGraph, new_nodes: Callable[[Node, Port], NewNodes]
    ) -> None:
        """Put nodes in the place of it, under the names of all that are replaced."""


class NewNodes:
    """The nodes of one rewrite.

    Attributes:
      shapes: of all nodes of the graph, by name; those of new ones are put in.
    """

    def __init__(
        self,
        graph: PricedGraph,
        edited: Graph,
        shapes: dict[str, tuple[Shape | None, ...]],
        root: Node,
        anchor: Port,
    ) -> None:
        """Begin without any.

        Args:
          graph: that they are for.
          edited: the same, as it becomes.
          shapes: of its nodes.
          root: further nodes are called after it, and are on its device.
          anchor: what it reads; constants wait for that, and so are in its loop.
        """
        self._graph = graph
        self._edited = edited
        self._root = root
        self._anchor = anchor
        self._count = 0
        self.shapes = shapes

    def replace(self, given: Node, made: NodeDef) -> NodeDef:
        """Put a node in the place of a given one, under its name."""
        made.name = given.name
        made.input.extend(text for text in controls(given) if text not in made.input)
        mark(made, given.proto)
        self._edited.put(made)
        return made

    def hand_on(self, given: Node, name: str) -> None:
        """Have a given node hand on the float32 result of another."""
        self.replace(given, part_of(given, "Identity", name))

    def add(self, node: NodeDef, what: str, shape: Shape) -> str:
        """Take in a further node, and return its name."""
        name = f"{self._root.name}/tf_amp_{self._count}_{what}"
        self._count += 1
        node.name = self._edited.unused(name)
        node.device = self._root.device
        mark(node, self._root.proto)
        self.shapes[node.name] = (shape,)
        return self._edited.add(node)

    def computed(self, op: str, what: str, inputs: Sequence[str], shape: Shape) -> str:
        """Take in a further float32 operation, and return its name.

        Of constants alone that is a constant, too: its result.
        """
        operands = [self._constant(text) for text in inputs]
        known = [tf.make_ndarray(c) for c in operands if c is not None]
        if len(known) == len(inputs):
            return self.add(self.constant(_FOLDED[op](*known), DT_FLOAT), what, shape)
        types = {"Tshape": DT_INT32} if op == "Reshape" else {}
        return self.add(new_node(op, inputs=inputs, T=DT_FLOAT, **types), what, shape)

    def _constant(self, name: str) -> TensorProto | None:
        """Return the value of a constant of the graph, or of a new one."""
        nodes, index = self._graph.view.nodes, self._graph.view.index
        is_given = name in index
        node = nodes[index[name]].proto if is_given else self._edited.nodes.get(name)
        is_constant = node is not None and node.op == "Const"
        return node.attr["value"].tensor if node and is_constant else None

    def shaped(self, port: Port, shape: tuple[int, ...]) -> str:
        """Return what holds the values of a port in some shape."""
        text = port_text(self._graph.view, port)
        if self._graph.shape(port) == shape:
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
        awaited = self._graph.view.nodes[(anchor or self._anchor).node].name
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
