"""Find the operation whose values first ceased to be finite in a step.

Gone back through are, from the question whether gradients are finite, the values that
are not, as a second run of the step shows them (`replay`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.annotations import REWRITTEN, WATCH
from grappler_pass.graph.op_table import IDENTITY_OPS, PRODUCT_OPS, SWITCH_OPS
from grappler_pass.graph.type_slots import DTYPE_NAMES
from grappler_pass.graph.view import GraphView, Node, Port
from grappler_pass.graph.walks import reached
from tf_amp.tracing.stamp_reader import is_gradient, traced_in
from tf_amp.training.overflow.replay import NotReplayableError, Replay, anchors

# What stands for a branch that is taken, constant folding's anchors included.
_PIVOTS = ("Const", "Identity", "NoOp")
_PASSING = IDENTITY_OPS | SWITCH_OPS
_FLOAT16_MAX = 65504.0
_DTYPES = ("DstT", "T", "dtype")
# Place of the loss scale among the inputs of a watch.
_SCALE = 0


class Found(NamedTuple):
    """Where values ceased to be finite.

    Attributes:
      node: that made the first value that is not finite, or that does not fit.
      dtype: that could not hold it.
      is_scale: whether it is the loss scale itself.
      is_gradient: whether the node is of the backward pass.
    """

    node: NodeDef
    dtype: str
    is_scale: bool = False
    is_gradient: bool = False


class Search:
    """A step that overflowed, with what it was given."""

    def __init__(
        self,
        graph_def: bytes,
        number: str,
        inputs: Sequence[Any],
        variable: Callable[[NodeDef], Any],
    ) -> None:
        """Find what the step computes on the way to the question.

        Args:
          graph_def: the graph, serialized: the one that ran, or as before rewriting.
          number: of the watch whose node got `inputs` when gradients were not finite.
          inputs: the values, in the order of that node's inputs.
          variable: returns the value that a variable had, given a node that is or
            reads its handle; None where unknown.

        Raises:
          NotReplayableError: the graph is not the step's, something that it needs is
            not at hand, or it might have effects.
        """
        graph = GraphDef.FromString(graph_def)
        # While they live, it is known what each node is a gradient of.
        self._traced = traced_in(graph)
        view = GraphView.from_graph_def(graph)
        watch = _watch(view, number)
        ports = watch.inputs[: len(inputs)]
        given = {_source(view, port): i for i, port in enumerate(ports)}
        self._view = view
        self._predicate = _predicate(view, watch)
        self._scale = view.nodes[_source(view, watch.inputs[_SCALE]).node]
        needed = _ancestors(view, self._predicate, given)
        self._replay = Replay(view, needed, given, inputs, variable)

    def first_not_finite(self) -> Found | None:
        """Return what makes the first infinity or NaN; None where there is none.

        Raises:
          NotReplayableError: it takes too long.
        """
        if not math.isfinite(float(self._replay.inputs[_SCALE])):
            return Found(self._scale.proto, "float32", is_scale=True)
        finite = self._replay.nodes_within(float("inf"))
        origin = _origin(self._view, self._predicate, finite, self._replay.needed)
        if origin is None:
            return None
        node = self._view.nodes[origin]
        types = [node.proto.attr[a].type for a in _DTYPES if a in node.proto.attr]
        dtype = DTYPE_NAMES.get(types[0], "") if types else ""
        if node.op == "Cast" and REWRITTEN in node.proto.attr:
            # The cast cannot hold what the node before it has computed.
            node = self._view.nodes[node.inputs[0].node]
        is_of_backward_pass = is_gradient(self._view, node)
        return Found(node.proto, dtype, is_gradient=is_of_backward_pass)

    def too_large(self) -> list[str]:
        """Name what makes or reads values that float16 cannot hold.

        Raises:
          NotReplayableError: it takes too long.
        """
        within = self._replay.nodes_within(_FLOAT16_MAX)
        found = [
            self._view.nodes[i] for i, is_within in within.items() if not is_within
        ]
        names = dict.fromkeys(node.name for node in found)
        for node in found:
            for reader in self._view.readers(Port(node.index, 0)):
                names[self._view.nodes[reader.node].name] = None
        return list(names)

    def feeding(self, name: str) -> list[str]:
        """Name what was rewritten right before a node, as far as the next product."""
        nodes = self._view.nodes

        def low_sources(index: int) -> list[int]:
            sources = (nodes[port.node] for port in nodes[index].inputs)
            low = (source for source in sources if REWRITTEN in source.proto.attr)
            return [source.index for source in low if source.op not in PRODUCT_OPS]

        behind = list(reached([self._view.index[name]], low_sources))[1:]
        written = (nodes[i].name for i in behind)
        return [
            each.partition("/tf_amp_")[0]
            for each in written
            if "/tf_amp_cast_" not in each
        ]


def _watch(view: GraphView, number: str) -> Node:
    for node in view.nodes:
        if WATCH in node.proto.attr and node.proto.attr[WATCH].s.decode() == number:
            return node
    raise NotReplayableError("the graph that ran is not known")


def _source(view: GraphView, port: Port) -> Port:
    """Return the port that a value was made at, behind what just passes it on."""
    node = view.nodes[port.node]
    while node.op in _PASSING:
        port = node.inputs[0]
        node = view.nodes[port.node]
    return port


def _predicate(view: GraphView, watch: Node) -> int:
    """Return the node that decides whether the watch runs.

    Where what it is given comes in without a Switch, it waits for a pivot.
    """
    for index in watch.controls:
        switch = _switch_behind(view, index)
        if switch is not None:
            return switch.inputs[1].node
    for index in reached([watch.index], lambda i: view.nodes[i].sources):
        if view.nodes[index].op in SWITCH_OPS:
            return view.nodes[index].inputs[1].node
    raise NotReplayableError(f"nothing decides whether {watch.name} runs")


def _switch_behind(view: GraphView, pivot: int) -> Node | None:
    """Return the Switch that a pivot goes by; None of another node."""
    node = view.nodes[pivot]
    while node.op in _PIVOTS:
        if len(node.sources) != 1:
            return None
        node = view.nodes[node.sources[0]]
    return node if node.op in SWITCH_OPS else None


def _ancestors(view: GraphView, start: int, given: Mapping[Port, int]) -> list[int]:
    """Return what a node is computed from, inputs first."""

    def sources(index: int) -> list[int]:
        node = view.nodes[index]
        own = (port.node for port in node.inputs if port not in given)
        return [*own, *anchors(view, node)]

    found = set(reached([start], sources))
    return [index for index in view.order if index in found]


def _origin(
    view: GraphView, start: int, finite: Mapping[int, bool], needed: Sequence[int]
) -> int | None:
    """Return the first node of those that lead to what is not finite.

    Followed are values that are not finite, and those that nobody could look at: a
    mask of -inf that a softmax has made finite leads nowhere.
    """
    place = {index: i for i, index in enumerate(needed)}

    def suspects(index: int) -> list[int]:
        before = (port.node for port in view.nodes[index].inputs)
        return [i for i in before if i in place and not finite.get(i, False)]

    ends = [
        index
        for index in reached([start], suspects)
        if finite.get(index) is False
        and not any(_leads_to_infinity(view, i, finite, place) for i in suspects(index))
    ]
    return min(ends, key=place.__getitem__, default=None)


def _leads_to_infinity(
    view: GraphView, index: int, finite: Mapping[int, bool], place: Mapping[int, int]
) -> bool:
    """Return whether a node, or what nobody could look at before it, is not finite."""

    def unseen(i: int) -> list[int]:
        before = (port.node for port in view.nodes[i].inputs)
        return [] if i in finite else [j for j in before if j in place]

    return any(not finite.get(i, True) for i in reached([index], unseen))
