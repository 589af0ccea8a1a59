"""A graph as the rules see it, and what each pass over a tensor takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Set

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.costs import CostModel, OpCall, TensorSpec
from grappler_pass.graph.shapes import Shape, Shapes, known_shape
from grappler_pass.graph.view import GraphView, Node, Port
from grappler_pass.planning.prices import NODE_SECONDS, Models


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
