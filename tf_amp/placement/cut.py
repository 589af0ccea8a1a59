"""Divide one graph between two devices at least cost: a minimum cut.

Each node that may run on either is a variable; what it costs is its price, at the types
it has, on either device. A tensor that crosses is charged once, at the type of its
producer, however many readers wait for it on the other side.

Prices are summed as if one node ran at a time: what the two devices do at once makes a
division better than predicted, never worse.

Which nodes of a graph may run on another device, and which only together.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import dtypes

from grappler_pass.costs import CostModel
from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.eligibility.regions import connected
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS, INPUT_OPS, RESULT_OPS
from grappler_pass.graph.shapes import Shape, Shapes
from grappler_pass.graph.type_slots import (
    SlotTable,
    kernel_exists,
    op_def_of,
    signature_of,
)
from grappler_pass.graph.view import GraphView, Item, Node
from grappler_pass.graph.walks import function_attrs
from grappler_pass.planning.assignment import (
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

    def transfer_seconds(self, tensor_bytes: int) -> float:
        """Return what moving a tensor to the other device takes."""
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
    view = GraphView.from_graph_def(graph_def, item)
    slots = SlotTable.from_view(view)
    sides = _Sides.from_view(view, site)
    pricer = Pricer(
        view,
        slots,
        _with_casts(view, shapes),
        site.models,
        "bfloat16",
        VariableReads.from_view(view),
    )
    crossing = _crossings(view, slots, pricer, sides)
    problem = _problem(view, slots, pricer, sides, crossing, site)
    at_home = [False] * sides.count
    before = problem.seconds([*at_home, True])
    away = minimum_cut(problem)
    after = problem.seconds(away)
    moved = [
        n for n in view.nodes if sides.of[n.index] >= 0 and away[sides.of[n.index]]
    ]
    if not moved or after > before * (1.0 - margin):
        return Placed(graph_def, (), site.home, site.other, before, before)
    sizes = []
    for term, size in crossing:
        ends = (term.producer, *term.readers)
        if len({v != FLOAT32_SIDE and away[v] for v in ends}) > 1:
            sizes.append(size)
    names = tuple(node.name for node in moved)
    moved_names = frozenset(names)
    changed = copy.deepcopy(graph_def)
    for node in changed.node:
        if node.name in moved_names:
            node.device = full_name(site.other)
    return Placed(
        changed, names, site.home, site.other, before, after, len(sizes), sum(sizes)
    )


def fixed_nodes(graph_def: GraphDef, item: Item, site: Site) -> frozenset[str]:
    """Name the nodes that stay where they are, whatever it costs."""
    view = GraphView.from_graph_def(graph_def, item)
    sides = _Sides.from_view(view, site)
    return frozenset(n.name for n in view.nodes if sides.of[n.index] < 0)


@dataclasses.dataclass(frozen=True)
class _Sides:
    """Per node the number of its variable, FLOAT32_SIDE, _ELSEWHERE, or None.

    None stands for a third device, to which the way is as far from either.
    """

    of: tuple[int, ...]
    third: frozenset[int]
    count: int

    @classmethod
    def from_view(cls, view: GraphView, site: Site) -> _Sides:
        places = [short_name(node.device) or site.home for node in view.nodes]
        of = [_ELSEWHERE if place == site.other else FLOAT32_SIDE for place in places]
        types = [name.partition(":")[0] for name in (site.home, site.other)]
        count = 0
        pinned = _pinned(view)
        for group in colocated(view):
            if pinned.isdisjoint(group) and all(
                places[i] == site.home and may_move(view, view.nodes[i], types)
                for i in group
            ):
                for i in group:
                    of[i] = count
                count += 1
        two = (site.home, site.other)
        third = frozenset(i for i, place in enumerate(places) if place not in two)
        return cls(tuple(of), third, count)

    def variable(self, node: int) -> int:
        """Return the variable of a node; what is elsewhere shares the last one."""
        side = self.of[node]
        return self.count if side == _ELSEWHERE else side


def _pinned(view: GraphView) -> frozenset[int]:
    """Return the nodes whose device is the user's own choice.

    That is known only where TensorFlow is yet to place the others: in functions
    every node has a device.
    """
    if all(node.device for node in view.nodes):
        return frozenset()
    return frozenset(node.index for node in view.nodes if node.device)


Crossing = tuple[CastTerm, int]


def _crossings(
    view: GraphView, slots: SlotTable, pricer: Pricer, sides: _Sides
) -> list[Crossing]:
    """Return a term, without its price, and the bytes of every port that is read."""
    found: list[Crossing] = []
    for node in view.nodes:
        if node.index in sides.third:
            continue
        for port in view.output_ports(node.index):
            readers = {r.node for r in view.readers(port)} - sides.third
            ends = frozenset(sides.variable(reader) for reader in readers)
            producer = sides.variable(node.index)
            if ends <= {producer}:
                continue
            dtype = slots.output_dtype(*port)
            known = dtype != types_pb2.DT_INVALID
            size = int(known and dtypes.as_dtype(dtype).base_dtype.size) or 4
            size *= pricer.spec(port).elements
            found.append((CastTerm(producer, ends, 0.0, 0.0), size))
    return found


def _problem(
    view: GraphView,
    slots: SlotTable,
    pricer: Pricer,
    sides: _Sides,
    crossing: Iterable[Crossing],
    site: Site,
) -> Problem:
    """Let the other device be the low side of the cut, and home its float32 side."""
    home = [0.0] * (sides.count + 1)
    away = [0.0] * (sides.count + 1)
    fixed = 0.0
    for node in view.nodes:
        low = (_LOW.get(slots.dtypes[slot]) for slot in slots.slots_of[node.index])
        # A node computes in 16 bits where any of it does.
        dtype = next(filter(None, low), "float32")
        call, weight = pricer.call(node), view.weight(node.index)
        variable = sides.variable(node.index)
        prices = [
            weight * site.models[name].price(call, dtype).seconds
            for name in (site.home, site.other)
        ]
        if sides.of[node.index] >= 0:
            home[variable] += prices[0]
            away[variable] += prices[1]
        elif node.index not in sides.third:
            fixed += prices[1 if variable == sides.count else 0]
    terms = [
        term._replace(up_seconds=seconds, down_seconds=seconds)
        for term, size in crossing
        for seconds in (site.transfer_seconds(size),)
    ]
    # The last variable stands for what is elsewhere: home must never pay for it.
    away[-1] = fixed
    home[-1] = fixed + 2.0 * sum((*home, *away, *(t.up_seconds for t in terms)))
    return Problem(home, away, terms)


def _with_casts(view: GraphView, shapes: Shapes) -> Shapes:
    """Return shapes, with those of casts that came later than shapes were inferred."""
    known: dict[str, tuple[Shape | None, ...]] = dict(shapes)
    for index in view.order:
        node = view.nodes[index]
        if node.op == "Cast" and node.name not in known:
            port = node.inputs[0]
            given = known.get(view.nodes[port.node].name, ())
            known[node.name] = given[port.output : port.output + 1]
    return known


_COLOCATION = b"loc:@"
# Belong to whoever calls the graph, or decide which of its nodes run.
_FIXED = INPUT_OPS | RESULT_OPS | CONTROL_FLOW_OPS | {"ControlTrigger", "NoOp"}
_PLAIN = frozenset(
    types_pb2.DataType.Value(f"DT_{name}")
    for name in "FLOAT DOUBLE HALF BFLOAT16 BOOL INT8 UINT8 INT32 INT64".split()
)


def may_move(view: GraphView, node: Node, device_types: Sequence[str]) -> bool:
    """Return whether a node may run on a device of any of these types.

    Not: what has state or draws random numbers, reads or makes other things than plain
    numbers, is part of a loop, calls functions, or is held by the caller.
    """
    if node.name in view.item.untouchable or view.frame(node.index) is not None:
        return False
    if not _is_pure(node.op) or any(function_attrs(node.proto)):
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


def colocated(view: GraphView) -> tuple[tuple[int, ...], ...]:
    """Return all nodes in groups that must share a device: by `_class`.

    A class may name a node, which then belongs to the group, or stand for itself.
    """
    named: dict[str, int] = dict(view.index)
    pairs = [
        (node.index, named.setdefault(name, node.index))
        for node in view.nodes
        for name in (node.name, *_classes(node.proto))
    ]
    return tuple(connected(pairs))


def _classes(proto: NodeDef) -> tuple[str, ...]:
    if "_class" not in proto.attr:
        return ()
    values = proto.attr["_class"].list.s
    return tuple(
        v[len(_COLOCATION) :].decode() for v in values if v.startswith(_COLOCATION)
    )


@functools.cache
def _is_pure(op: str) -> bool:
    op_def = op_def_of(op)
    if op_def is None or op_def.is_stateful or op in _FIXED:
        return False
    return not any(arg.is_ref for arg in (*op_def.input_arg, *op_def.output_arg))
