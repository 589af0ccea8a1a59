"""Divide one graph between two devices at least cost: a minimum cut.

Each node that may run on either is a variable; what it costs is its price, at the types
it has, on either device. A tensor that crosses is charged once, at the type of its
producer, however many readers wait for it on the other side.

Prices are summed as if one node ran at a time: what the two devices do at once makes a
division better than predicted, never worse.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.costs import CostModel
from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.eligibility.regions import connected
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS, INPUT_OPS, RESULT_OPS
from grappler_pass.graph.shapes import Shape, Shapes
from grappler_pass.graph.type_slots import (
    SlotTable,
    kernel_exists,
    op_def_of,
    signature_of,
)
from grappler_pass.graph.view import Graph, Item, Node
from grappler_pass.graph.walks import function_attrs
from grappler_pass.planning.coloring import (
    FLOAT32_SIDE,
    CastTerm,
    Problem,
    minimum_cut,
)
from grappler_pass.planning.prices import Pricer
from tf_amp.placement.named_devices import full_name, short_name

_LOW = {types_pb2.DT_HALF: "float16", types_pb2.DT_BFLOAT16: "bfloat16"}
# A side of the cut: what is fixed to the other device, as FLOAT32_SIDE is to home.
_ELSEWHERE = -2
_COLOCATION = b"loc:@"
# Belong to whoever calls the graph, or decide which of its nodes run.
_FIXED = INPUT_OPS | RESULT_OPS | CONTROL_FLOW_OPS | {"ControlTrigger", "NoOp"}
_PLAIN = frozenset(
    types_pb2.DataType.Value(f"DT_{name}")
    for name in "FLOAT DOUBLE HALF BFLOAT16 BOOL INT8 UINT8 INT32 INT64".split()
)


@dataclasses.dataclass(frozen=True)
class Site:
    """Two devices, by names like "GPU:0", with a model each, and what joins them.

    Attributes:
      home: where the graph runs as given.
      other: what parts may move to.
      models: of both.
      bytes_per_second: of large tensors that move between them.
      seconds_per_transfer: of the smallest.
    """

    home: str
    other: str
    models: Mapping[str, CostModel]
    bytes_per_second: float
    seconds_per_transfer: float

    @property
    def home_type(self) -> Home:
        """Where a node without a device runs."""
        return Home(self.home.partition(":")[0])

    def transfer_seconds(self, tensor_bytes: int) -> float:
        """Return the seconds of moving a tensor to the other device."""
        return self.seconds_per_transfer + tensor_bytes / self.bytes_per_second


@dataclasses.dataclass(frozen=True)
class Placed:
    """A graph divided between two devices, or left whole where that costs less.

    Attributes:
      graph_def: the very GraphDef given where nothing moves.
      moved: nodes that run on the other device now.
      home: name of the device of the rest.
      other: name of the device of `moved`.
      seconds_before: predicted per step, with all on `home`.
      seconds_after: predicted per step as divided, transfers included.
      transfers: tensors that cross.
      transfer_bytes: their size.
    """

    graph_def: GraphDef
    moved: tuple[str, ...]
    home: str
    other: str
    seconds_before: float
    seconds_after: float
    transfers: int = 0
    transfer_bytes: int = 0

    def __str__(self) -> str:
        """Show what moves and what that is predicted to gain."""
        before = f"{self.seconds_before * 1e3:.4g}"
        if not self.moved:
            return f"all stays on {self.home}: moving gains too little ({before} ms)"
        return (
            f"{len(self.moved)} nodes move from {self.home} to {self.other}, "
            f"{self.transfers} tensors ({self.transfer_bytes} bytes) cross; predicted "
            f"step {before} -> {self.seconds_after * 1e3:.4g} ms"
        )


def place_graph(
    graph_def: GraphDef, item: Item, shapes: Shapes, site: Site, margin: float
) -> Placed:
    """Return a graph with devices at which it costs least; types stay what they are.

    What the caller relies on stays where it is, and all does unless `margin`, a share
    of the step, is gained.
    """
    view = Graph(graph_def, item, site.home_type)
    division = _Division(view, site)
    # Casts may have come later than shapes were inferred.
    known: dict[str, tuple[Shape | None, ...]] = dict(shapes)
    for node in (view.nodes[index] for index in view.order):
        if node.op == "Cast" and node.name not in known:
            port = node.inputs[0]
            given = known.get(view.nodes[port.node].name, ())
            known[node.name] = given[port.output : port.output + 1]
    pricer = Pricer(
        view,
        division.slots,
        known,
        site.models,
        "bfloat16",
        VariableReads.from_view(view),
    )
    crossings = division.crossings(pricer)
    problem = division.problem(pricer, crossings)
    before = problem.seconds([*[False] * division.count, True])
    away = minimum_cut(problem)
    after = problem.seconds(away)
    sides = division.sides
    names = [n.name for n in view.nodes if sides[n.index] >= 0 and away[sides[n.index]]]
    if not names or after > before * (1.0 - margin):
        return Placed(graph_def, (), site.home, site.other, before, before)
    sizes = [
        size
        for term, size in crossings
        if len({v != FLOAT32_SIDE and away[v] for v in (term.producer, *term.readers)})
        > 1
    ]
    moved = frozenset(names)
    changed = copy.deepcopy(graph_def)
    for node in changed.node:
        if node.name in moved:
            node.device = full_name(site.other)
    return Placed(
        graph_def=changed,
        moved=tuple(names),
        home=site.home,
        other=site.other,
        seconds_before=before,
        seconds_after=after,
        transfers=len(sizes),
        transfer_bytes=sum(sizes),
    )


def fixed_nodes(graph_def: GraphDef, item: Item, site: Site) -> frozenset[str]:
    """Name the nodes that stay where they are, whatever it costs."""
    view = Graph(graph_def, item, site.home_type)
    sides = _Division(view, site).sides
    return frozenset(n.name for n in view.nodes if sides[n.index] < 0)


class _Division:
    """Which nodes of a graph may move, together, and what that costs.

    Attributes:
      sides: by node the number of its variable, FLOAT32_SIDE or _ELSEWHERE.
      third: nodes on a third device, to which the way is as far from either.
      count: of variables.
    """

    def __init__(self, view: Graph, site: Site) -> None:
        self._view, self._site = view, site
        self.slots = SlotTable.from_view(view)
        places = [short_name(node.device) or site.home for node in view.nodes]
        self.sides = [
            _ELSEWHERE if place == site.other else FLOAT32_SIDE for place in places
        ]
        two = (site.home, site.other)
        self.third = {i for i, place in enumerate(places) if place not in two}
        types = [name.partition(":")[0] for name in two]
        # A device that is named is the user's own choice where TensorFlow is yet to
        # place the others: in functions every node has one.
        is_placed = all(node.device for node in view.nodes)
        self.count = 0
        for group in colocated(view):
            if all(
                places[i] == site.home
                and (is_placed or not view.nodes[i].device)
                and may_move(view, view.nodes[i], types)
                for i in group
            ):
                for i in group:
                    self.sides[i] = self.count
                self.count += 1

    def _variable(self, node: int) -> int:
        """Return the variable of a node; what is elsewhere shares the last one."""
        return self.count if self.sides[node] == _ELSEWHERE else self.sides[node]

    def crossings(self, pricer: Pricer) -> list[tuple[CastTerm, int]]:
        """Return by port that is read a term for moving it, and its bytes."""
        terms = []
        for node in self._view.nodes:
            if node.index in self.third:
                continue
            producer = self._variable(node.index)
            for port in self._view.output_ports(node.index):
                readers = {r.node for r in self._view.readers(port)} - self.third
                ends = frozenset(map(self._variable, readers))
                if ends <= {producer}:
                    continue
                dtype = self.slots.output_dtype(*port)
                known = dtype != types_pb2.DT_INVALID
                size = int(known and tf.as_dtype(dtype).base_dtype.size) or 4
                size *= pricer.spec(port).elements
                seconds = self._site.transfer_seconds(size)
                terms.append((CastTerm(producer, ends, seconds, seconds), size))
        return terms

    def problem(
        self, pricer: Pricer, crossings: Iterable[tuple[CastTerm, int]]
    ) -> Problem:
        """Return the cut whose low side is the other device, its float32 side home."""
        home, away = ([0.0] * (self.count + 1) for _ in range(2))
        fixed = 0.0
        for node in self._view.nodes:
            slots = self.slots.slots_of[node.index]
            low = (_LOW.get(self.slots.dtypes[slot]) for slot in slots)
            # A node computes in 16 bits where any of it does.
            dtype = next(filter(None, low), "float32")
            call, weight = pricer.call(node), self._view.weight(node.index)
            at_home, elsewhere = (
                weight * self._site.models[name].price(call, dtype).seconds
                for name in (self._site.home, self._site.other)
            )
            side = self.sides[node.index]
            if side >= 0:
                home[side] += at_home
                away[side] += elsewhere
            elif node.index not in self.third:
                fixed += elsewhere if side == _ELSEWHERE else at_home
        terms = [term for term, _ in crossings]
        # The last variable stands for what is elsewhere: home must never pay for it.
        away[-1] = fixed
        home[-1] = fixed + 2.0 * sum((*home, *away, *(t.up_seconds for t in terms)))
        return Problem(home, away, terms)


def may_move(view: Graph, node: Node, device_types: Sequence[str]) -> bool:
    """Return whether a node may run on a device of any of these types.

    Not: what has state or draws random numbers, reads or makes other things than plain
    numbers, is part of a loop, calls functions, or is held by the caller.
    """
    if node.name in view.item.untouchable or view.frame(node.index) is not None:
        return False
    op_def = op_def_of(node.op)
    if op_def is None or op_def.is_stateful or node.op in _FIXED:
        return False
    is_reference = any(arg.is_ref for arg in (*op_def.input_arg, *op_def.output_arg))
    if is_reference or any(function_attrs(node.proto)):
        return False
    signature = signature_of(node.proto)
    if not {arg.dtype for arg in (*signature.inputs, *signature.outputs)} <= _PLAIN:
        return False
    types = tuple(
        (name, value.type)
        for name, value in sorted(node.proto.attr.items())
        if value.WhichOneof("value") == "type"
    )
    return all(kernel_exists(node.op, types, each) for each in device_types)


def colocated(view: Graph) -> tuple[tuple[int, ...], ...]:
    """Return all nodes in groups that must share a device: by `_class`.

    A class may name a node, which then belongs to the group, or stand for itself.
    """
    named: dict[str, int] = dict(view.index)
    pairs = []
    for node in view.nodes:
        classes = (
            node.proto.attr["_class"].list.s if "_class" in node.proto.attr else ()
        )
        texts = (each for each in classes if each.startswith(_COLOCATION))
        names = (each.removeprefix(_COLOCATION).decode() for each in texts)
        for name in (node.name, *names):
            pairs.append((node.index, named.setdefault(name, node.index)))
    return tuple(connected(pairs))
