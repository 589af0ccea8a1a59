"""Float32 edges between slots, walks over them, and what they keep in float32.

An optimizer's arithmetic is found by what it feeds, not by names: the walk back from
the values written to variables, up to the products of the backward pass. Other regions
are what surrounds scaled gradients, and values that 16 bits do not hold:

A mask of -1e9 becomes -inf in float16, and a row that is masked whole turns into NaN;
an epsilon of 1e-12 becomes zero in front of a division. What such a constant goes into
stays float32 up to the next allow op, and so does an allow op that reads it unchanged.

bfloat16 counts to 256 and float16 to 2048, then skips: an id, a position or a length
that passes through either comes out as another. Two graphs must also draw the same
dropout mask from the same seed.

  Cast(int -> float32) --> Mul --> Cast(float32 -> int)     all of it stays float32
  RandomUniform --> GreaterEqual                            the comparison too
  Cast(int -> float32) --> Einsum --> Cos                   large angles, every bit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.tensor_pb2 import TensorProto

from grappler_pass.annotations import BARRIER, LOSS_SCALE
from grappler_pass.graph import op_table as table
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, CLEAR, DENY, INFER
from grappler_pass.graph.op_traits import has_effects, is_random, is_update
from grappler_pass.graph.type_slots import FLOAT32, NO_SLOT, SlotTable
from grappler_pass.graph.view import Graph
from grappler_pass.graph.walks import reached

_Thing = TypeVar("_Thing", bound=Hashable)
_Value = TypeVar("_Value")


def spread(
    starts: Iterable[tuple[_Thing, _Value]],
    following: Callable[[_Thing], Iterable[_Thing]],
) -> dict[_Thing, _Value]:
    """Return what is reached from some starts, each with the value of its start.

    A start keeps its own value, of several the first.
    """
    values: dict[_Thing, _Value] = {}
    for thing, value in starts:
        values.setdefault(thing, value)
    waiting = list(values)
    while waiting:
        thing = waiting.pop()
        for each in following(thing):
            if each not in values:
                values[each] = values[thing]
                waiting.append(each)
    return values


def walk(
    starts: Iterable[int],
    neighbors: Sequence[Sequence[int]],
    enters: Container[int],
    crosses: Container[int] | None = None,
) -> dict[int, int]:
    """Return the vertices that are reached, each with the start that it is from.

    Args:
      starts: reached by definition, whatever `enters` says of them.
      neighbors: vertex to vertices one step away.
      enters: vertices that may be reached.
      crosses: those from which the walk goes on, as it does from starts; None: all.
    """
    begins = dict.fromkeys(starts)

    def following(vertex: int) -> Iterable[int]:
        goes_on = crosses is None or vertex in crosses or vertex in begins
        return [v for v in neighbors[vertex] if v in enters] if goes_on else ()

    return spread(zip(begins, begins, strict=True), following)


_Member = TypeVar("_Member", int, tuple[int, int])


def connected(pairs: Iterable[tuple[_Member, _Member]]) -> list[tuple[_Member, ...]]:
    """Return the sets of what pairs connect, they and their members in order."""
    above: dict[_Member, _Member] = {}

    def top(member: _Member) -> _Member:
        above.setdefault(member, member)
        while above[member] != member:
            # Halve the path.
            above[member] = member = above[above[member]]
        return member

    for first, second in pairs:
        above[top(second)] = top(first)
    sets: dict[_Member, list[_Member]] = {}
    for member in sorted(above):
        sets.setdefault(top(member), []).append(member)
    return list(map(tuple, sets.values()))


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
        view: Graph,
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

    def on(self, *lists: str) -> frozenset[int]:
        """Return the slots of nodes that are on one of these lists."""
        return frozenset(s for s, name in enumerate(self.lists) if name in lists)


def state_update_region(view: Graph, lists: OpLists) -> dict[int, int]:
    """Return the nodes of updates' arithmetic, each with an update that it is part of.

    A node belongs if every live reader is an update or belongs itself. The walk
    neither enters nor crosses allow ops and gradient reductions: otherwise the backward
    pass of a step that returns nothing would be optimizer arithmetic.
    """
    inputs = [[port.node for port in node.inputs] for node in view.nodes]
    # What each update writes to variables. A call of a function is one if that is all
    # that the function does with some argument.
    updating = {n.index: inputs[n.index] for n in view.nodes if is_update(n.op)}
    for name, position in view.item.updates:
        node = view.nodes[view.index[name]]
        written = node.inputs[position].node
        updating[node.index] = [*updating.get(node.index, ()), written]
    open_to_walk = {
        node.index
        for node in view.nodes
        if updating
        and lists.place_of(node.proto).list_name != ALLOW
        and node.op not in table.SUMMING_GRADIENT_OPS
        and not is_update(node.op)
        and node.name not in view.item.untouchable
    }
    walked = [updating.get(i, sources) for i, sources in enumerate(inputs)]
    region = walk(updating, walked, open_to_walk)
    for i in updating:
        if not is_update(view.nodes[i].op):
            del region[i]
            # Two inputs may come from one node, one of them for another use.
            inputs[i] = list((Counter(inputs[i]) - Counter(updating[i])).elements())
    live = live_nodes(view) if region else frozenset()

    def inside(i: int) -> list[int]:
        """Return what a live node reads of the region, updates aside."""
        sources = inputs[i] if i in live else ()
        return [s for s in sources if region.get(s, s) != s]

    # What a live node outside of the region reads is no part of it.
    for i in reached([i for i in live if i not in region], inside):
        region.pop(i, None)
    return region


def live_nodes(view: Graph) -> frozenset[int]:
    """Return the nodes that a fetched, preserved or stateful node needs.

    Where nothing is fetched or preserved, what has no reader counts as fetched.
    """
    stateful = (node.index for node in view.nodes if has_effects(node.op))
    return view.behind([*view.roots, *stateful])


def behind_barriers(view: Graph) -> dict[int, int]:
    """Return the nodes that are a barrier or behind one, each with that barrier.

    The unscaling multiplication of gradients carries the mark; what comes after it is
    in true units and must not be rounded or overflow again.
    """
    barriers = [view.index[name] for name in view.item.barriers]
    return spread(((i, i) for i in (*_marked(view, BARRIER), *barriers)), view.read_by)


def behind_loss_scales(view: Graph, lists: OpLists) -> dict[int, int]:
    """Return the nodes computed with a loss scale, each with the read of that scale.

    Gradients begin with the scale, which float16 may not hold, and become smaller as
    means are differentiated. The walk ends at products, before which they have.
    """

    def enters(i: int) -> bool:
        return lists.place_of(view.nodes[i].proto).list_name != ALLOW

    starts = ((i, i) for i in _marked(view, LOSS_SCALE))
    return spread(starts, lambda i: filter(enters, view.read_by(i)))


def _marked(view: Graph, mark: str) -> list[int]:
    # `in` first: reading a missing key of a protobuf map creates it.
    attrs = ((node.index, node.proto.attr) for node in view.nodes)
    return [i for i, attr in attrs if mark in attr and attr[mark].b]


# Magnitudes from the first on, halfway between the largest finite value and the next
# power of two, round to infinity. Those below the second lose bits.
_LIMITS = {
    types_pb2.DT_HALF: (65520.0, 2.0**-14),
    types_pb2.DT_BFLOAT16: ((2.0 - 2.0**-8) * 2.0**127, 0.0),
}
# Integers too wide for 8 significant bits; images and masks (uint8, bool) are not.
_WIDE_INTEGERS = frozenset(
    getattr(types_pb2, f"DT_{sign}INT{bits}")
    for sign in ("", "U")
    for bits in (16, 32, 64)
)
_INTEGERS = _WIDE_INTEGERS | {types_pb2.DT_INT8, types_pb2.DT_UINT8}


def values_of(tensor: TensorProto) -> np.ndarray:
    """Return a float32 tensor's values, a repeated one once."""
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, dtype="<f4")
    return np.fromiter(tensor.float_val, np.float32, len(tensor.float_val))


def out_of_range_slots(
    view: Graph, slots: SlotTable, edges: SlotEdges, low_dtype: int
) -> dict[int, int]:
    """Return the slots that constants keep in float32, each with a constant's."""
    overflow, normal = _LIMITS[low_dtype]
    large: list[int] = []
    small: list[int] = []
    for node in view.nodes:
        own = slots.slots_of[node.index]
        if node.op != "Const" or not own or slots.dtypes[own[0]] != FLOAT32:
            continue
        magnitudes = np.abs(values_of(node.proto.attr["value"].tensor))
        if (np.isfinite(magnitudes) & (magnitudes >= overflow)).any():
            large.append(own[0])
        elif magnitudes.size == 1 and 0.0 < float(magnitudes[0]) < normal:
            small.append(own[0])
    computed = walk([*large, *small], edges.readers, edges.on(INFER, CLEAR))
    unchanged = walk(large, edges.readers, edges.on(ALLOW, CLEAR), edges.on(CLEAR))
    return unchanged | computed


def exact_slots(view: Graph, slots: SlotTable, edges: SlotEdges) -> dict[int, int]:
    """Return the slots that stay exact, each with the slot that asks it to.

    Three things ask: a cast to integers, of all that it is computed from, back to allow
    ops; a comparison, a rounding, a logarithm or a trigonometric function, of those
    operands that hold exact values.
    """
    # Whole numbers and draws are exact, and what is made of them; an allow op is the
    # last to be.
    drawn: list[int] = []
    for node in view.nodes:
        if node.op == "Cast":
            is_exact = slots.input_dtype(node.index, 0) in _WIDE_INTEGERS
        else:
            is_exact = node.op in table.COUNTING_OPS or is_random(node.op)
        drawn += slots.slots_of[node.index] if is_exact else ()
    reaches, crosses = edges.on(INFER, CLEAR, DENY, ALLOW), edges.on(INFER, CLEAR, DENY)
    exact = walk(drawn, edges.readers, reaches, crosses).keys()
    to_integer: list[int] = []
    magnified: list[int] = []
    angles: list[int] = []
    for node in view.nodes:
        own = slots.slots_of[node.index][:1]
        if not own or slots.dtypes[own[0]] != FLOAT32:
            continue
        if node.op == "Cast":
            if slots.output_dtype(node.index, 0) in _INTEGERS:
                to_integer += own
        elif node.op in table.MAGNIFYING_OPS and own[0] in exact:
            magnified += own
        elif node.op in table.TRIGONOMETRIC_OPS:
            angles += own
    plain = frozenset(range(len(edges.lists))) - edges.on(ALLOW)
    numeric, any_product = edges.on(INFER, CLEAR), edges.on(INFER, CLEAR, ALLOW)
    behind_angles = walk(angles, edges.sources, any_product, numeric)
    return {
        **{slot: angle for slot, angle in behind_angles.items() if slot in exact},
        **walk(magnified, edges.sources, plain & exact),
        **walk(to_integer, edges.sources, plain | exact, plain),
    }
