"""Scalars: what each update computes of one, such as the number of the step, once.

    Before   (ReadVariableOp --> AddV2 --> Cast --> Pow --> update) for each weight
    After    ReadVariableOp --> AddV2 --> Cast --> Pow --> all updates

Keras' optimizers compute the powers of their factors for each weight anew. TensorFlow
does not see that these are the same, since it does not merge reads of a variable.

Reads of one handle that wait for the same nodes may run at the same moment. So to read
once is to run the graph in an order that TensorFlow may choose, whatever writes the
variable. What is computed of equal values by equal nodes is equal, bit by bit.

Not done: where a write of the variable is not surely before or after both reads; for
what holds more than one value, since a program may compute that again to keep less in
memory; for what is fetched, fed or excluded; where so little is saved that a call
takes as long either way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import NamedTuple

from grappler_pass.annotations import STAMP
from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.fusions.matching import PricedGraph
from grappler_pass.graph.editing import new_node
from grappler_pass.graph.op_table import CONSTANT_OPS, CONTROL_FLOW_OPS, IDENTITY_OPS
from grappler_pass.graph.op_traits import has_effects, is_random
from grappler_pass.graph.shapes import variable_shape
from grappler_pass.graph.type_slots import signature_of
from grappler_pass.graph.view import Graph, Node, Port
from grappler_pass.planning.prices import NODE_SECONDS

# Of the nodes that are computed of one variable, so many must be saved.
_FEWEST = 8


class Shared(NamedTuple):
    """A scalar variable of which much is computed again.

    Attributes:
      read: the first read of it.
      equal: numbers of nodes, with the tensor that each computes again.
      seconds: that are saved per step.
    """

    read: Node
    equal: Mapping[int, Port]
    seconds: float


def shared_scalars(graph: PricedGraph) -> Iterator[Shared]:
    """Yield the scalar variables of a graph of which much is computed again."""
    if not _may_repeat(graph.view):
        return
    for root, equal in _Repeats(graph).by_variable.items():
        nodes = [graph.view.nodes[i] for i in equal]
        # A read that the caller relies on is an effect of a function: it stays.
        saved = [n for n in nodes if n.name not in graph.view.item.untouchable]
        if len(saved) >= _FEWEST:
            seconds = sum(graph.gain(n, _node_seconds(graph, n), 0.0) for n in saved)
            yield Shared(graph.view.nodes[root.node], equal, seconds)


def computed_once(view: Graph, found: Iterable[Shared]) -> Graph:
    """Return a copy of a graph that computes shared scalars once.

    Each node passes on what an earlier one has computed; one that the caller relies on
    stays, and others read the earlier one instead. No node is marked as rewritten: what
    is done where a graph stays float32, such as leaving out its loss scale, is done.
    """
    edited = view.copy()
    for _, equal, _ in found:
        for number, first in equal.items():
            node, port = view.nodes[number], Port(number, 0)
            if node.name in view.item.untouchable:
                for reader in edited.readers(port):
                    edited.read(reader, view.text(first))
                continue
            awaited = [f"^{view.nodes[i].name}" for i in node.controls]
            same = new_node(
                "Identity",
                node.name,
                [view.text(first), *awaited],
                node.device,
                T=view.dtype(port),
            )
            for name in (STAMP, "_class"):
                if name in node.proto.attr:
                    same.attr[name].CopyFrom(node.proto.attr[name])
            edited.put(same)
    return edited


def _may_repeat(view: Graph) -> bool:
    """Return whether a scalar variable is read several times."""
    reads = Counter(node.inputs[0] for node in view.nodes if _reads_scalar(view, node))
    return any(count > 1 for count in reads.values())


def _reads_scalar(view: Graph, node: Node) -> bool:
    if node.op != "ReadVariableOp":
        return False
    handle = view.source(node.inputs[0], IDENTITY_OPS | CONTROL_FLOW_OPS)
    return variable_shape(handle.proto) == ()


def _node_seconds(graph: PricedGraph, node: Node) -> float:
    if node.op == "ReadVariableOp":
        return NODE_SECONDS
    return graph.pass_seconds(node, node.op, ())


class _Repeats:
    """The nodes of a graph that compute what an earlier one has computed of scalars.

    Attributes:
      by_variable: for the first read of each variable: the nodes, by number, with the
        tensor that each computes again.
    """

    def __init__(self, graph: PricedGraph) -> None:
        self._graph = graph
        self._equal_reads = VariableReads.from_view(graph.view).canonical
        # By each scalar that is computed of a variable, the first read of that.
        self._roots: dict[Port, Port] = {}
        self._equal: dict[Port, Port] = {}
        self._firsts: dict[Hashable, Port] = {}
        self.by_variable: Mapping[Port, dict[int, Port]] = defaultdict(dict)
        for i in graph.view.order:
            self._visit(graph.view.nodes[i])

    def _visit(self, node: Node) -> None:
        """Note a node if it computes a scalar of variables."""
        view, port = self._graph.view, Port(node.index, 0)
        root: Port | None
        if _reads_scalar(view, node):
            first = self._equal_reads.get(port, port)
            if view.nodes[first.node].place != node.place:
                first = port
            root = first
        else:
            operands = [self._equal.get(each, each) for each in node.inputs]
            root = next((self._roots[p] for p in operands if p in self._roots), None)
            if root is None or not self._computes_scalar(node):
                return
            first = self._firsts.setdefault(_key(node, operands), port)
        self._roots[port] = root
        if first != port:
            self._equal[port] = first
            self.by_variable[root][node.index] = first

    def _computes_scalar(self, node: Node) -> bool:
        """Return whether a node is a function of scalars alone."""
        may_change = self._graph.may_change(node)
        return (
            may_change
            and not (
                node.op in CONTROL_FLOW_OPS | IDENTITY_OPS
                or has_effects(node.op)
                or is_random(node.op)
                or len(signature_of(node.proto).outputs) != 1
                or any(key.startswith(STAMP + "_") for key in node.proto.attr)
            )
            and all(map(self._is_scalar, node.inputs))
        )

    def _is_scalar(self, port: Port) -> bool:
        node = self._graph.view.nodes[port.node]
        if node.op in CONSTANT_OPS:
            return not node.proto.attr["value"].tensor.tensor_shape.dim
        return port in self._roots or self._graph.shape(port) == ()


def _key(node: Node, operands: list[Port]) -> Hashable:
    """Return what nodes have in common that compute the same at the same moment."""
    attrs = (
        (key, value.SerializeToString(deterministic=True))
        for key, value in node.proto.attr.items()
        if key != STAMP
    )
    return (
        node.op,
        node.place,
        tuple(operands),
        frozenset(node.controls),
        frozenset(attrs),
    )
