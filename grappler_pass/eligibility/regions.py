"""Float32 edges between slots, walks over them, and regions that stay float32.

An optimizer's arithmetic is found by what it feeds, not by names: the walk back from
the values written to variables, up to the products of the backward pass. Other regions
are what surrounds scaled gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from grappler_pass.annotations import BARRIER, LOSS_SCALE
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, SUMMING_GRADIENT_OPS
from grappler_pass.graph.op_traits import has_effects, is_update
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import GraphView, Node

UNREACHED = -1

Neighbors = Sequence[Sequence[int]]


def spread(
    starts: Iterable[int],
    neighbors: Neighbors,
    enters: Sequence[bool],
    crosses: Sequence[bool] | None = None,
) -> list[int]:
    """Return for every vertex the start it is reached from, or UNREACHED.

    Args:
      starts: reached by definition, whatever `enters` says of them.
      neighbors: vertex to vertices one step away.
      enters: whether a vertex may be reached.
      crosses: whether the walk goes on from a reached vertex that is no start; None
        for everywhere.
    """
    start_of = [UNREACHED] * len(neighbors)
    waiting = list(dict.fromkeys(starts))
    for start in waiting:
        start_of[start] = start
    while waiting:
        vertex = waiting.pop()
        cause = start_of[vertex]
        for target in neighbors[vertex]:
            if start_of[target] == UNREACHED and enters[target]:
                start_of[target] = cause
                if crosses is None or crosses[target]:
                    waiting.append(target)
    return start_of


def first_of(*walks: Sequence[int]) -> list[int]:
    """Return for every vertex the start of the first walk that reaches it."""
    return [
        next((start for start in starts if start != UNREACHED), UNREACHED)
        for starts in zip(*walks, strict=True)
    ]


_Member = TypeVar("_Member", int, tuple[int, int])


class Unions(Generic[_Member]):
    """Sets of what is joined in pairs (union-find)."""

    def __init__(self) -> None:
        """Begin with nothing joined."""
        self._above: dict[_Member, _Member] = {}

    def join(self, first: _Member, second: _Member) -> None:
        """Make one set of those of two members."""
        self._above[self._top(second)] = self._top(first)

    def groups(self) -> list[tuple[_Member, ...]]:
        """Return the sets of what was joined, they and their members in order."""
        sets: dict[_Member, list[_Member]] = {}
        for member in sorted(self._above):
            sets.setdefault(self._top(member), []).append(member)
        return list(map(tuple, sets.values()))

    def _top(self, member: _Member) -> _Member:
        above = self._above
        top = above.setdefault(member, member)
        while above[top] != top:
            # Halve the path.
            above[top] = top = above[above[top]]
        return top


def connected(pairs: Iterable[tuple[_Member, _Member]]) -> list[tuple[_Member, ...]]:
    """Return the sets of what pairs connect, they and their members in order."""
    unions = Unions[_Member]()
    for pair in pairs:
        unions.join(*pair)
    return unions.groups()


class SlotEdges(NamedTuple):
    """Slots one float32 tensor away, and on which list each is.

    Attributes:
      readers: slot to slots that read what it governs.
      sources: slot to slots that govern what it reads.
      lists: slot to the name of its node's list; None where it is on none.
    """

    readers: list[list[int]]
    sources: list[list[int]]
    lists: list[str | None]

    @classmethod
    def from_view(
        cls,
        view: GraphView,
        slots: SlotTable,
        lists: OpLists,
        ties: tuple[tuple[int, ...], ...],
    ) -> SlotEdges:
        """Collect the edges; tied slots count as reading each other."""
        readers: list[list[int]] = [[] for _ in slots.slots]
        sources: list[list[int]] = [[] for _ in slots.slots]
        dtypes = slots.dtypes
        for node in view.nodes:
            for position, port in enumerate(node.inputs):
                reader = slots.input_slot(node.index, position)
                if reader == NO_SLOT or dtypes[reader] != FLOAT32:
                    continue
                source = slots.output_slot(*port)
                if source != NO_SLOT and dtypes[source] == FLOAT32:
                    readers[source].append(reader)
                    sources[reader].append(source)
        for hub, *members in ties:
            for edges in (readers, sources):
                edges[hub].extend(members)
                for member in members:
                    edges[member].append(hub)
        places = [lists.place_of(node.proto).list_name for node in view.nodes]
        return cls(readers, sources, [places[node] for node in slots.node_of])

    def on(self, *lists: str) -> list[bool]:
        """Return for every slot whether its node is on one of these lists."""
        return [name in lists for name in self.lists]


def state_update_region(view: GraphView, lists: OpLists) -> list[int]:
    """Return for every node the update whose arithmetic it is part of, or UNREACHED.

    A node belongs if every live reader is an update or belongs itself. The walk
    neither enters nor crosses allow ops and gradient reductions: otherwise the backward
    pass of a step that returns nothing would be optimizer arithmetic.
    """
    updating = _updating_inputs(view)
    if not updating:
        return [UNREACHED] * len(view.nodes)
    inputs = [[port.node for port in node.inputs] for node in view.nodes]
    untouchable = view.item.untouchable
    open_to_walk = [
        lists.place_of(node.proto).list_name != ALLOW
        and node.op not in SUMMING_GRADIENT_OPS
        and not is_update(node.op)
        and node.name not in untouchable
        for node in view.nodes
    ]
    walked = [updating.get(i, sources) for i, sources in enumerate(inputs)]
    region = spread(updating, walked, open_to_walk)
    for i in updating:
        if not is_update(view.nodes[i].op):
            region[i] = UNREACHED
            # Two inputs may come from one node, one of them for another use.
            inputs[i] = list((Counter(inputs[i]) - Counter(updating[i])).elements())
    _drop_nodes_read_outside(view, region, inputs)
    return region


def _updating_inputs(view: GraphView) -> dict[int, list[int]]:
    """Return for each update the nodes whose values it writes to variables.

    A call of a function is one if that is all the function does with some argument.
    """
    updating = {
        node.index: [port.node for port in node.inputs]
        for node in view.nodes
        if is_update(node.op)
    }
    for name, position in view.item.updates:
        node = view.nodes[view.index[name]]
        updating.setdefault(node.index, []).append(node.inputs[position].node)
    return updating


def _drop_nodes_read_outside(
    view: GraphView, region: list[int], inputs: list[list[int]]
) -> None:
    """Take out of `region`, in place, what a live node outside of it reads."""
    live = live_nodes(view)
    waiting = [i for i in live if region[i] == UNREACHED]
    while waiting:
        for source in inputs[waiting.pop()]:
            if region[source] not in (UNREACHED, source):
                region[source] = UNREACHED
                if source in live:
                    waiting.append(source)


def live_nodes(view: GraphView) -> frozenset[int]:
    """Return the nodes that a fetched, preserved or stateful node needs.

    Where nothing is fetched or preserved, what has no reader counts as fetched.
    """
    stateful = (node.index for node in view.nodes if has_effects(node.op))
    return view.behind([*view.roots, *stateful])


def behind_barriers(view: GraphView) -> list[int]:
    """Return for every node the barrier that it is or that leads to it, or UNREACHED.

    The unscaling multiplication of gradients carries the mark; what comes after it is
    in true units and must not be rounded or overflow again.
    """
    barriers = [view.index[name] for name in view.item.barriers]
    return _behind(view, BARRIER, barriers, lambda node: True)


def behind_loss_scales(view: GraphView, lists: OpLists) -> list[int]:
    """Return for every node the read of a loss scale that leads to it, or UNREACHED.

    Gradients begin with the scale, which float16 may not hold, and become smaller as
    means are differentiated. The walk ends at products, before which they have.
    """

    def enters(node: Node) -> bool:
        return lists.place_of(node.proto).list_name != ALLOW

    return _behind(view, LOSS_SCALE, [], enters)


def _behind(
    view: GraphView, mark: str, also: list[int], enters: Callable[[Node], bool]
) -> list[int]:
    """Return the node that each is reached from: a marked one, or one of others."""
    # `in` first: reading a missing key of a protobuf map creates it.
    attrs = ((node.index, node.proto.attr) for node in view.nodes)
    starts = [*(i for i, attr in attrs if mark in attr and attr[mark].b), *also]
    if not starts:
        return [UNREACHED] * len(view.nodes)
    after: list[list[int]] = [[] for _ in view.nodes]
    for node in view.nodes:
        for port in node.inputs:
            after[port.node].append(node.index)
    return spread(starts, after, list(map(enters, view.nodes)))
