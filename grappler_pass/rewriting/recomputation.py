"""Compute again what is cheap, beside its late readers, so that a step holds less.

Before   product --> gelu --------------------> product
                     gelu --------------------> its gradient (late)
After    product --> gelu --> product
         product ------------> gelu again ----> its gradient (late)

Late is what runs after the moment at which the step holds most. Of the tensors that are
written before and read after it, some are kept and the others computed again of those.
The choice is a minimum cut: a node that is computed again takes its seconds, a tensor
that is kept its bytes, once, at the highest price in seconds that a share of the step
allows. The copy waits for what its first reader reads beside it, so that no executor
runs it early, and no optimizer takes it for its original.

Two things come first, since they take no time. What frees memory runs in time
(`run_order`). And the gradient of a normalization has the mask of a fused ReLU for an
operand, which CPUs do not look at: it reads a vector instead, and no mask is held.

Values are those of the original, bit by bit.

Not done: what draws random numbers or has effects; products and reductions, but for
batch normalizations; loops and what is downstream of a branch; across devices; casts of
variables.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Set
from copy import deepcopy

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.types_pb2 import DT_RESOURCE

from grappler_pass.annotations import REWRITTEN, mark
from grappler_pass.costs.calls import DTYPE_BYTES, FLOATING
from grappler_pass.costs.op_classes import ELEMENTWISE, MOVEMENT, SOFTMAX
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_traits import has_effects, is_random
from grappler_pass.graph.type_slots import dtype_name
from grappler_pass.graph.view import Graph, Node, Port, Reader
from grappler_pass.planning.cut import FLOAT32_SIDE, CastTerm, Problem, minimum_cut
from grappler_pass.planning.decisions import withdrawn
from grappler_pass.planning.draft import FORCED, PRICED, Draft
from grappler_pass.planning.live_set import Peak, is_relu_mask, peak_of
from grappler_pass.planning.memory_price import SHARE, lightest, weighted
from grappler_pass.planning.plan import Cause
from grappler_pass.planning.prices import NODE_SECONDS
from grappler_pass.rewriting.run_order import plain_nodes, with_early_readers

_AGAIN_STEM = "tf_amp_again"
_CHEAP = (
    ELEMENTWISE.keys()
    | SOFTMAX
    | table.VIEW_OPS
    | {op for op in MOVEMENT if not op.startswith("Tensor")}
    | table.BATCH_NORM_OPS
    | {"AddN", "BiasAdd", "Cast", "Fill", "OnesLike", "ZerosLike"}
)
_CAST_TYPES = ("SrcT", "DstT")
# Inputs of the gradient of a normalization.
_SAVED_MEAN, _RESERVED = 3, 5
# The late readers are one variable of the cut, which is always on the side of copies.
_LATE = 0


def recompute(draft: Draft) -> Draft:
    """Return a draft whose graph computes again what a step need not hold."""
    settings = draft.settings
    is_wanted = settings.saves_memory and not settings.fuses
    is_rewriting = settings.opt_level in (PRICED, *FORCED)
    if not is_wanted or not is_rewriting or draft.prices is None:
        return draft
    view = draft.view_of(draft.rewritten)
    if any(node.op in table.REF_VARIABLE_OPS for node in view.nodes):
        # What they hold may change before it is read again.
        return draft
    lighter, held = _recomputed(draft, view)
    if settings.opt_level != PRICED or not any(draft.low):
        return lighter
    given = peak_of(draft.view_of(draft.given), draft.shapes)
    if held <= given.live_set.size:
        return lighter
    # Of a small batch the 16-bit copies of weights may outweigh the rest.
    draft = withdrawn(draft, Cause.HOLDS_MORE)
    return _recomputed(draft, draft.view_of(draft.given))[0]


def _recomputed(draft: Draft, view: Graph) -> tuple[Draft, int]:
    """Return the draft that holds less, if one does, and the bytes of its peak."""
    before = peak_of(view, draft.shapes)
    given = draft.view.index.keys()
    ordered = with_early_readers(_without_masks(view), before, given).to_graph_def()
    search = _Search(draft, draft.view_of(ordered))
    again, seconds = search.again()
    rewritten = search.written(again)
    after = peak_of(draft.view_of(rewritten), draft.shapes)
    if not _holds_less(after, before):
        # It now holds most elsewhere, copies among it.
        return draft, before.live_set.size
    plan = dataclasses.replace(
        draft.plan,
        seconds_after=draft.plan.seconds_after + seconds,
        recomputed=len(again),
    )
    lighter = dataclasses.replace(draft, rewritten=rewritten, plan=plan)
    return lighter, after.live_set.size


def _holds_less(one: Peak, other: Peak) -> bool:
    return one.live_set.size < other.live_set.size


def _without_masks(view: Graph) -> Graph:
    """Return a graph in which no gradient of a normalization reads its ReLU's mask."""
    graph = view.copy()
    for node in view.nodes:
        if node.op != "FusedBatchNormGradV3" or node.device_type != "CPU":
            continue
        mask = node.inputs[_RESERVED]
        if is_relu_mask(view.nodes[mask.node], mask):
            vector = view.text(node.inputs[_SAVED_MEAN])
            graph.read(Reader(node.index, _RESERVED), vector)
            graph.edit(node.name).attr[REWRITTEN].b = True
    return graph


class _Search:
    """What of one graph is read late, and can be computed again.

    Attributes:
      triggers: for each reader that may read a copy, what that waits for.
    """

    def __init__(self, draft: Draft, view: Graph) -> None:
        self._draft, self._view = draft, view
        self._peak, self._plain = peak_of(view, draft.shapes), plain_nodes(view)
        self._of_variables = frozenset(_of_variables(view))
        self._begin = {number: i for i, number in enumerate(self._peak.order)}
        # When what is late runs.
        self._place = dict[int, int]()
        for place, number in enumerate(self._peak.late, self._peak.past):
            if not self._may_run_early(view.nodes[number]):
                self._place[number] = place
        self._held = [
            port
            for number in self._peak.order
            if number not in self._place
            for port in view.output_ports(number)
            if any(reader.node in self._place for reader in view.readers(port))
        ]
        self.triggers = dict(self._find_triggers())

    def _may_run_early(self, node: Node) -> bool:
        """Return whether a late node only happens to be: it reads nothing late."""
        is_ready = self._place.keys().isdisjoint(node.sources)
        return is_ready and self._is_cheap(node)

    def _find_triggers(self) -> Iterator[tuple[Reader, int]]:
        """Yield late readers, each with the last late node that it waits for."""
        view, places = self._view, self._place
        for port in self._held:
            for reader in view.readers(port):
                node = view.nodes[reader.node]
                if reader.node not in places or reader.node not in self._plain:
                    continue
                late = [
                    source
                    for source in node.sources
                    if source in places and source in self._plain
                ]
                devices = {view.nodes[i].device for i in (*late, port.node)}
                if late and devices == {node.device}:
                    yield reader, max(late, key=places.__getitem__)

    def _stays(self, port: Port) -> bool:
        """Return whether a tensor is held whatever reads it late."""
        node = self._view.nodes[port.node]
        return (
            node.op in table.INPUT_OPS | table.CONSTANT_OPS | table.VARIABLE_OPS
            or port.node in self._of_variables
            or node.name in self._view.item.untouchable
            or any(
                reader.node in self._place and reader not in self.triggers
                for reader in self._view.readers(port)
            )
        )

    def _is_cheap(self, node: Node) -> bool:
        """Return whether a node can be run again for little."""
        return (
            node.op in _CHEAP
            and not has_effects(node.op)
            and not is_random(node.op)
            and node.index not in self._place
            and node.index not in self._of_variables
            and node.name not in self._view.item.feed
            and node.index in self._plain
            and self.seconds(node.index) is not None
            and {self._view.nodes[port.node].device for port in node.inputs}
            <= {node.device}
        )

    def seconds(self, number: int) -> float | None:
        """Return what running a node again takes; None if that is not known."""
        draft, node = self._draft, self._view.nodes[number]
        models = draft.settings.models
        model = models.get(node.device_type) or models["CPU"]
        if node.op == "Cast":
            source, target = (dtype_name(node.proto.attr[a].type) for a in _CAST_TYPES)
            if not {source, target} <= FLOATING:
                return None
            elements = self._peak.size(Port(number, 0)) // DTYPE_BYTES[target]
            return model.cast_price(elements, source, target).seconds + NODE_SECONDS
        given = draft.view.index.get(node.name)
        if given is None:
            return None
        is_low = given in draft.low_nodes
        priced = draft.prices.low[given] if is_low else draft.prices.float32[given]
        return None if priced is None else priced + NODE_SECONDS

    def _bytes(self, port: Port) -> float:
        """Return what is held of a tensor; the more, the earlier it is written.

        So layers that are alike differ, and a part of them may be computed again.
        """
        past, begin = self._peak.past, self._begin[port.node]
        return self._peak.size(port) * (0.5 + max(past - begin, 0) / past)

    def again(self) -> tuple[frozenset[int], float]:
        """Return the nodes that are computed again, and the seconds that it takes."""
        readers = defaultdict[Port, set[int]](set)
        for reader in self.triggers:
            port = self._view.nodes[reader.node].inputs[reader.input]
            readers[port].add(_LATE)
        numbers: dict[int, int] = {}
        waiting = list(readers)
        for port in waiting:
            node = self._view.nodes[port.node]
            if port.node in numbers or not self._is_cheap(node):
                continue
            numbers[port.node] = len(numbers) + 1
            waiting += (source for source in node.inputs if source not in readers)
            for source in node.inputs:
                readers[source].add(numbers[port.node])
        zeros = [0.0] * (1 + len(numbers))
        spent = [0.0, *(self.seconds(number) or 0.0 for number in numbers)]
        seconds = Problem([math.inf, *zeros[1:]], spent, [])
        terms = [
            CastTerm(
                numbers.get(port.node, FLOAT32_SIDE),
                frozenset(reading),
                0.0,
                0.0 if self._stays(port) else self._bytes(port),
            )
            for port, reading in readers.items()
        ]
        held = Problem(zeros, zeros, terms)
        most = SHARE / 2 * self._draft.plan.seconds_after
        total = sum(term.down_seconds for term in terms)
        low = lightest(
            lambda weight: minimum_cut(weighted(seconds, held, weight)),
            lambda low: sum(itertools.compress(spent, low)),
            most,
            8.0 * most / max(total, 1.0),
        )
        if low is None:
            return frozenset(), 0.0
        again = frozenset(n for n, number in numbers.items() if low[number])
        return again, sum(itertools.compress(spent, low))

    def written(self, again: Set[int]) -> GraphDef:
        """Return the graph in which late readers read copies."""
        view, graph = self._view, self._view.copy()
        # The place of the first reader of a node's copy, and what that waits for.
        first: dict[int, tuple[int, int]] = {}
        for number in reversed(view.order):
            if number not in again:
                continue
            moments = [
                first[reader.node]
                if reader.node in again
                else (self._place[reader.node], self.triggers[reader])
                for port in view.output_ports(number)
                for reader in view.readers(port)
                if reader.node in again or reader in self.triggers
            ]
            first[number] = min(moments)
        names: dict[int, str] = {}

        def text(port: Port) -> str:
            name = names.get(port.node)
            if name is None:
                return view.text(port)
            return f"{name}:{port.output}" if port.output else name

        for number in view.order:
            if number not in again:
                continue
            node, proto = view.nodes[number], deepcopy(view.nodes[number].proto)
            trigger = view.nodes[first[number][1]].name
            names[number] = proto.name = graph.unused(f"{node.name}/{_AGAIN_STEM}")
            proto.input[: len(node.inputs)] = map(text, node.inputs)
            proto.input.append(f"^{trigger}")
            mark(proto, node.proto)
            graph.add(proto, behind=trigger)
        for reader in self.triggers:
            port = view.nodes[reader.node].inputs[reader.input]
            if port.node in again:
                graph.read(reader, text(port))
        return graph.to_graph_def()


def _of_variables(view: Graph) -> Iterator[int]:
    """Yield the nodes whose results depend on variables and constants alone."""
    found = set[int]()
    for number in view.order:
        node = view.nodes[number]
        varying = {
            port.node
            for port in node.inputs
            if view.nodes[port.node].op not in table.CONSTANT_OPS
            and view.dtype(port) != DT_RESOURCE
        }
        if varying <= found and (varying or node.op in table.READ_OPS):
            found.add(number)
            yield number
