"""Low-precision and float32 parts of a graph on devices that suit them.

    affinity = tf_amp.placement.precision_affinity({"GPU:0": "t4", "GPU:1": "a100"})
    placed = affinity.place(graph_def, ["logits"])  # a given graph
    with affinity:  # all graphs that first run within
        train_step(batch)

The graph as it would run is divided, and so are those that mixed precision makes of it
at the prices of either device. The cheapest is taken.

What divides a graph at least cost is a minimum cut. Each node that may run on either
device is a variable; what it costs is its price, at the types it has, on either. A
tensor that crosses is charged once, at the type of its producer, however many readers
wait for it on the other side.

Prices are summed as if one node ran at a time: what the two devices do at once makes a
division better than predicted, never worse.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass import pipeline
from grappler_pass.costs import CostModel, DeviceProfile, ProfileError
from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.eligibility.regions import connected
from grappler_pass.garbage import collection_paused
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_table import CONTROL_FLOW_OPS, INPUT_OPS, RESULT_OPS
from grappler_pass.graph.shapes import Shape, Shapes, shapes_from_graph_def
from grappler_pass.graph.type_slots import (
    SlotTable,
    kernel_exists,
    op_def_of,
    signature_of,
)
from grappler_pass.graph.view import Graph, Item, Node
from grappler_pass.graph.walks import function_attrs
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.cut import (
    FLOAT32_SIDE,
    CastTerm,
    Problem,
    minimum_cut,
)
from grappler_pass.planning.draft import Settings
from grappler_pass.planning.prices import TRANSFER_BYTES_PER_SECOND, Pricer
from tf_amp.errors import ConfigError
from tf_amp.placement.named_devices import checked_devices, short_name
from tf_amp.rewriting import graph_settings, host
from tf_amp.tools.explanation import config_for, traced_graph

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
            node.device = f"/job:localhost/replica:0/task:0/device:{site.other}"
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


# A send, a receive and the wait for it; what a copy between devices takes at least.
TRANSFER_SECONDS = 20e-6
# Of the step, that a placement must gain by default.
_LEAST_SHARE = 0.02

Profiles = Mapping[str, str | DeviceProfile]


class PrecisionAffinity:
    """Two devices to divide graphs between: given ones, or those run within."""

    def __init__(self, site: Site, margin: float) -> None:
        """Take checked devices; `precision_affinity` makes them."""
        self._site = site
        self._margin = margin
        self._placed: list[Placed] = []

    @property
    def placed(self) -> tuple[Placed, ...]:
        """How each graph that ran within was divided, or left whole, oldest first."""
        return tuple(self._placed)

    def place(self, graph_def: GraphDef, fetches: Iterable[str]) -> Placed:
        """Return a graph in mixed precision and divided, where that should pay.

        Args:
          graph_def: not modified; its nodes run on the first device, unless they name
            another.
          fetches: names of the nodes whose outputs are read.

        Raises:
          ValueError: a fetch is not in the graph.
        """
        with collection_paused():
            _, kept, name = traced_graph(graph_def, (), {}, tuple(fetches))
            feed = (n.name for n in graph_def.node if n.op.startswith("Placeholder"))
            item = Item(fetch=kept, feed=tuple(feed))
            shapes = shapes_from_graph_def(graph_def)
            chosen = graph_settings.settings_from_config(config_for(graph_def), "CPU")
            chosen = dataclasses.replace(chosen, home=self._site.home_type)
            return self._cheapest(graph_def, (), item, shapes, chosen, name)[0]

    def __enter__(self) -> PrecisionAffinity:
        """Divide every graph that mixed precision reaches from now on."""
        host.current().placers.append(self._place_rewrite)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave further graphs where they are; those that have run stay divided."""
        host.current().placers.remove(self._place_rewrite)

    def _place_rewrite(
        self, graph_def: Any, rewrite: Rewrite, item: Item, shapes: Shapes, chosen: Any
    ) -> Rewrite:
        """Return the rewrite to run instead of a given one."""
        if rewrite.plan is None:
            return rewrite
        with collection_paused():
            placed, best = self._cheapest(
                graph_def, (rewrite,), item, shapes, chosen, rewrite.plan.graph
            )
        self._placed.append(placed)
        logging.info("%s: %s", rewrite.plan.graph, placed)
        return best if placed.moved else rewrite

    def _cheapest(
        self,
        graph_def: Any,
        rewrites: tuple[Rewrite, ...],
        item: Item,
        shapes: Shapes,
        chosen: Settings,
        name: str,
    ) -> tuple[Placed, Rewrite]:
        """Divide the graph as it is rewritten, and as either device would have it."""
        own = self._rewrites(graph_def, item, shapes, chosen, name)
        candidates = [*rewrites, *own]
        # Of those that leave the graph as it is one will do.
        alike = {id(each.graph_def): each for each in reversed(candidates)}
        rows = [
            (place_graph(each.graph_def, item, shapes, self._site, self._margin), each)
            for each in alike.values()
        ]
        whole = min(placed.seconds_before for placed, _ in rows)
        placed, best = min(rows, key=lambda row: row[0].seconds_after)
        placed = dataclasses.replace(placed, seconds_before=whole)
        if placed.moved and placed.seconds_after > whole * (1.0 - self._margin):
            placed, best = min(rows, key=lambda row: row[0].seconds_before)
            placed = dataclasses.replace(
                placed, graph_def=best.graph_def, moved=(), seconds_after=whole
            )
        plan = best.plan or candidates[0].plan
        changed = placed.graph_def is not graph_def
        return placed, Rewrite(placed.graph_def, plan, changed)

    def _rewrites(
        self, graph_def: Any, item: Item, shapes: Shapes, chosen: Settings, name: str
    ) -> list[Rewrite]:
        """Rewrite a graph at the prices of either device.

        For the other one also with all in float32 that cannot move there, if any of it
        is in 16 bits.
        """

        def rewritten(given: Item, *devices: str) -> list[Rewrite]:
            return pipeline.optimize_at_each(
                graph_def,
                given,
                [priced_at[device] for device in devices],
                shapes=lambda: shapes,
                name=name,
            )

        home, other = self._site.home, self._site.other
        # Settings that believe one model, and nothing else.
        priced_at = {
            device: dataclasses.replace(
                chosen, models={"CPU": model, "GPU": model}, own_steps=None, memory=None
            )
            for device, model in self._site.models.items()
        }
        found = rewritten(item, home, other)
        plan = found[1].plan
        rows = plan.decisions if plan else ()
        low = frozenset(row.slot.node for row in rows if row.is_low)
        fixed = fixed_nodes(graph_def, item, self._site) if low else low
        if fixed & low:
            stays = tuple((node, f"it stays on {home}") for node in sorted(fixed))
            kept = dataclasses.replace(item, excluded=(*item.excluded, *stays))
            found += rewritten(kept, other)
        return found


def precision_affinity(
    devices: Profiles,
    *,
    bytes_per_second: float = TRANSFER_BYTES_PER_SECOND,
    seconds_per_transfer: float = TRANSFER_SECONDS,
    margin: float = _LEAST_SHARE,
) -> PrecisionAffinity:
    """Return a divider of graphs between two heterogeneous devices, where that pays.

    Args:
      devices: two names, each with its profile (the name of a shipped one, a path, or a
        `DeviceProfile`): first the device that graphs run on without this, then the
        one that parts may move to.
      bytes_per_second: of the link between them.
      seconds_per_transfer: what a transfer takes at least.
      margin: share of the step that must be gained.

    Raises:
      ConfigError: there are not two devices, one is not there, a profile is unknown, or
        a number makes no sense.
    """
    if len(devices) != 2:
        raise ConfigError(
            f"devices: received {len(devices)} of them ({', '.join(devices)}); give "
            "two, each with a profile."
        )
    if not (bytes_per_second > 0.0 and seconds_per_transfer >= 0.0):
        raise ConfigError(
            f"bytes_per_second: received {bytes_per_second!r}, seconds_per_transfer: "
            f"received {seconds_per_transfer!r}; allowed are positive numbers."
        )
    if not 0.0 <= margin < 1.0:
        raise ConfigError(f"margin: received {margin!r}; allowed are 0 to below 1.")
    home, other = map(short_name, checked_devices(tuple(devices)))
    try:
        profiles = [
            each if isinstance(each, DeviceProfile) else DeviceProfile.load(each)
            for each in devices.values()
        ]
    except ProfileError as error:
        raise ConfigError(f"devices: {error}") from error
    models = dict(zip((home, other), map(CostModel, profiles), strict=True))
    site = Site(home, other, models, bytes_per_second, seconds_per_transfer)
    return PrecisionAffinity(site, margin)
