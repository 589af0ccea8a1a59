"""A graph and the functions it calls, each as an item of its own, and put back.

    step --> while --> body of the while --> function called in it

A function's arguments and results keep their types, so every body can be planned and
rewritten alone. What is known where it is called comes along: shapes, how often it
runs, and which arguments are gradients that were unscaled already. So does what callers
must know: which arguments only serve to update, and what was unscaled.

    update(gradient):  v -= rate * gradient      its argument only serves to update
    gradients(x):      return unscale(...)       its results are behind a barrier

A function may be called from elsewhere too, where it is to stay unchanged, or be
rewritten otherwise. So each changed body becomes a function of its own, and so does
every function on the way to it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.eligibility.regions import (
    behind_barriers,
    live_nodes,
    state_update_region,
)
from grappler_pass.functions.conversion import (
    Call,
    FunctionError,
    Known,
    Library,
    call_of,
    called_by,
    callers_first,
    function_from_graph,
    graph_from_function,
    library_of,
    reachable_from,
    rename_functions,
    set_known,
)
from grappler_pass.graph.frames import TRIP_COUNT_GUESS, compared_to, counts_in
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, WHILE_OPS
from grappler_pass.graph.op_traits import is_update
from grappler_pass.graph.shapes import (
    Shape,
    Shapes,
    known_shape,
    shape_from_proto,
    shapes_from_graph_def,
)
from grappler_pass.graph.type_slots import FLOATING
from grappler_pass.graph.view import (
    Graph,
    Item,
    Node,
    Port,
    Reader,
)
from grappler_pass.graph.walks import reached
from grappler_pass.planning.plan import Plan

# Ops that make a list of tensors for elements of a shape, their first input.
_LISTS = frozenset({"EmptyTensorList", "TensorListReserve"})


@dataclasses.dataclass(frozen=True)
class Body:
    """A function's body, or the outermost graph, ready for the pass.

    Attributes:
      name: of the function; empty for the outermost graph.
      graph_def: with the functions that it calls in its library.
      item: what its callers rely on.
      shapes: returns static shapes.
      weight: how often it runs per step.
    """

    name: str
    graph_def: GraphDef
    item: Item
    shapes: Callable[[], Shapes]
    weight: float = 1.0


class _Site(NamedTuple):
    """A call of a function, as far as it bears on the function's body."""

    known: tuple[Known, ...] = ()
    unscaled: frozenset[int] = frozenset()
    weight: float = 1.0


class _Facts(NamedTuple):
    """What a function does with its arguments.

    Attributes:
      updating: numbers of the floating ones that only serve to update variables.
      unread: numbers of those that it does not read.
      unscales: whether a result is behind a barrier, wherever its arguments come from.
    """

    updating: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()
    unscales: bool = False


_Calls = Sequence[tuple[Node, Call]]


def bodies_of(
    graph_def: GraphDef, item: Item, shapes: Callable[[], Shapes], lists: OpLists
) -> tuple[Body, ...]:
    """Return a graph and all the functions whose bodies may gain.

    The graph itself comes first, then the functions, callers first. Left out are those
    that are called in an unknown way, those whose types are not fixed, and those
    without an allow op. `shapes` of the graph are asked for once, if at all.
    """
    library = library_of(graph_def)
    order = callers_first(graph_def.node, library)
    if not order:
        return (Body("", graph_def, item, functools.cache(shapes)),)
    # What functions do, callees first; of one that calls itself nothing is known there.
    facts: dict[str, _Facts] = defaultdict(_Facts)
    graphs: dict[str, tuple[GraphDef, Graph, _Calls]] = {}
    for name in (*reversed(order), ""):
        body = graph_def, item
        try:
            body = graph_from_function(library[name], library) if name else body
        except FunctionError:
            continue
        view = Graph(*body)
        calls = [(n, call) for n in view.nodes if (call := call_of(n.proto, library))]
        view.item = _knowing_calls(view.item, calls, facts)
        graphs[name] = body[0], view, calls
        if name:
            facts[name] = _facts_of(view, lists)
    # What has an allow op, or calls what has one, may gain.
    allowing = (
        name
        for name, function in library.items()
        if any(lists.list_of(node.op) == ALLOW for node in function.node_def)
    )
    wanted = {"", *reached(allowing, _callers(library).__getitem__)}
    # What is known where functions are called, callers first.
    sites: dict[str, list[_Site]] = defaultdict(list, {"": [_Site()]})
    bodies: list[Body] = []
    for name in ("", *order):
        if name not in graphs or name not in wanted or not sites[name]:
            continue
        given, view, all_calls = graphs[name]
        unscaled = frozenset[int]().union(*(site.unscaled for site in sites[name]))
        behind = (view.item.feed[number] for number in sorted(unscaled))
        view.item = dataclasses.replace(
            view.item, barriers=(*behind, *view.item.barriers)
        )
        if name:
            set_known(given, library[name], sites[name][0].known)
            shapes = functools.partial(shapes_from_graph_def, given)
        weight = sum(site.weight for site in sites[name])
        bodies.append(Body(name, given, view.item, functools.cache(shapes), weight))
        taken = [each for each in all_calls if not wanted.isdisjoint(each[1].functions)]
        for called, site in _sites_in(view, bodies[-1], taken, library):
            sites[called].append(site)
    return tuple(bodies)


def _knowing_calls(item: Item, calls: _Calls, facts: Mapping[str, _Facts]) -> Item:
    """Return an item that also says what the functions do that its graph calls."""
    updates: list[tuple[str, int]] = []
    barriers = list(item.barriers)
    for node, call in calls:
        of_call = [facts[name] for name in call.functions]
        # What updates in one, and in no other serves another purpose.
        harmless = frozenset.intersection(*(f.updating | f.unread for f in of_call))
        updating = harmless & frozenset.union(*(f.updating for f in of_call))
        updates.extend((node.name, call.first + i) for i in sorted(updating))
        if any(each.unscales for each in of_call):
            barriers.append(node.name)
    return dataclasses.replace(item, updates=tuple(updates), barriers=tuple(barriers))


def _facts_of(view: Graph, lists: OpLists) -> _Facts:
    """Return what a function does, as a graph that is fed arguments."""
    region = state_update_region(view, lists)
    live, by_calls = live_nodes(view), set(view.item.updates)

    def is_harmless(reader: Reader) -> bool:
        """Return whether a reader is an update, feeds one, or does not run."""
        node = view.nodes[reader.node]
        in_region = reader.node in region or is_update(node.op)
        updates = in_region or (node.name, reader.input) in by_calls
        return updates or reader.node not in live

    updating, unread = set(), set()
    for number, name in enumerate(view.item.feed):
        argument = Port(view.index[name], 0)
        readers = view.readers(argument)
        if not readers:
            unread.add(number)
        elif view.dtype(argument) in FLOATING and all(map(is_harmless, readers)):
            updating.add(number)
    behind = behind_barriers(view)
    unscales = any(view.index[name] in behind for name in view.item.fetch)
    return _Facts(frozenset(updating), frozenset(unread), unscales)


def _sites_in(
    view: Graph, body: Body, calls: _Calls, library: Library
) -> Iterator[tuple[str, _Site]]:
    """Yield what is known of each function where a body calls it."""
    unscaled = behind_barriers(view)
    for node, call in calls:
        arguments = node.inputs[call.first :]
        weight = body.weight * view.weight(node.index)
        if node.op in WHILE_OPS:
            bound = min(bounds(view, node, library), default=None)
            weight *= TRIP_COUNT_GUESS if bound is None else max(1.0, bound)
        known = tuple(
            Known(known_shape(body.shapes(), view, port), tuple(_contents(view, port)))
            for port in arguments
        )
        behind = (i for i, p in enumerate(arguments) if p.node in unscaled)
        site = _Site(known, frozenset(behind), weight)
        yield from ((name, site) for name in call.functions)


def _callers(library: Library) -> Mapping[str, list[str]]:
    """Return the functions that call each function of a library."""
    callers: dict[str, list[str]] = {name: [] for name in library}
    for name, function in library.items():
        for called in {
            n for each in function.node_def for n in called_by(each, library)
        }:
            callers[called].append(name)
    return callers


def _contents(view: Graph, port: Port) -> Iterator[tuple[int, Shape | None]]:
    """Yield dtype and shape of what a handle refers to, where its maker says so."""
    node = view.nodes[port.node]
    while node.op == "Identity" or node.op in WHILE_OPS:
        # What goes around a loop comes out with the number that it went in by.
        port = node.inputs[port.output]
        node = view.nodes[port.node]
    attr = node.proto.attr
    if "_handle_dtypes" in attr and "_handle_shapes" in attr:
        dtypes = attr["_handle_dtypes"].list.type
        shapes = attr["_handle_shapes"].list.shape
        yield from zip(dtypes, map(shape_from_proto, shapes), strict=False)
    elif node.op in _LISTS:
        source, shape = view.nodes[node.inputs[0].node].proto, None
        if source.op == "Const":
            sizes = tf.make_ndarray(source.attr["value"].tensor)
            if sizes.ndim:
                shape = tuple(int(size) if size >= 0 else None for size in sizes)
        yield attr["element_dtype"].type, shape


def bounds(view: Graph, loop: Node, library: Library) -> Iterator[float]:
    """Yield what the counters in a loop's condition are compared to, where known."""
    condition = library.get(loop.proto.attr["cond"].func.name)
    if condition is None:
        return
    graph_def, item = graph_from_function(condition, library)
    inside = Graph(graph_def, item)
    for port in compared_to(inside.nodes, inside.index[item.fetch[0]]):
        bound = inside.source(port, ("Identity",))
        if bound.name in item.feed:
            # It is called with the bound: a constant, or another loop's count.
            argument = loop.inputs[item.feed.index(bound.name)]
            bound = view.source(argument, ("Identity",))
            if bound.op in WHILE_OPS and bound.index != loop.index:
                # The loop of a gradient counts to what its forward loop has counted.
                yield from bounds(view, bound, library)
                continue
        yield from counts_in(bound.proto)


def with_bodies(
    graph_def: GraphDef,
    changed: Mapping[str, GraphDef],
    new_name: Callable[[str], str],
) -> GraphDef:
    """Return a graph that calls rewritten functions.

    Before   while(body=f), f calls g                 g was rewritten
    After    while(body=f'), f' calls g'              f and g are as they were

    Args:
      graph_def: the outermost graph; not modified.
      changed: rewritten graphs by name of function; that of the outermost graph itself
        by the empty name.
      new_name: from the name of a function to that of its copy, which nothing has yet.
    """
    library = dict(library_of(graph_def))
    outermost = GraphDef()
    outermost.CopyFrom(changed.get("", graph_def))
    # What has changed, and what calls what is affected.
    starts = changed.keys() & library.keys()
    affected = set(reached(starts, _callers(library).__getitem__))
    names = {name: new_name(name) for name in library if name in affected}
    for name, copied_name in names.items():
        function = library[name]
        if name in changed:
            function = function_from_graph(changed[name], function)
        copied = type(function)()
        copied.CopyFrom(function)
        copied.signature.name = copied_name
        for node in copied.node_def:
            rename_functions(node, names)
        library[copied_name] = copied
    for node in outermost.node:
        rename_functions(node, names)
    outermost.library.ClearField("function")
    for name in reachable_from(outermost.node, library):
        outermost.library.function.append(library[name])
    return outermost


class PlanPart(NamedTuple):
    """The plan of one run of a function, and how often it runs per step.

    Its name is put before those of its nodes; the outermost graph has none.
    """

    name: str
    weight: float
    plan: Plan


def merged(parts: Sequence[PlanPart]) -> Plan:
    """Return the plan of one step, with the rows of all parts in their order.

    What else a plan says is the first part's: the others are started with it.
    """
    first = parts[0].plan
    totals = {
        name: first.call_seconds
        + sum(
            part.weight * (getattr(part.plan, name) - part.plan.call_seconds)
            for part in parts
        )
        for name in ("seconds_before", "seconds_after")
    }
    rows = []
    for name, weight, plan in parts:
        for row in plan.decisions:
            node = f"{name}/{row.slot.node}" if name else row.slot.node
            slot = dataclasses.replace(row.slot, node=node)
            rows.append(dataclasses.replace(row.times(weight), slot=slot))
    largest = max((part.plan for part in parts), key=lambda p: p.peak_bytes_after)
    errors = (part.weight * part.plan.gain_error for part in parts)
    return dataclasses.replace(
        first,
        decisions=tuple(rows),
        casts=sum(part.plan.casts for part in parts),
        casts_removed=sum(part.plan.casts_removed for part in parts),
        gain_error=math.hypot(*errors),
        low_speedup=first.low_speedup if len(parts) == 1 else 0.0,
        guessed=next((p.plan.guessed for p in parts if p.plan.guessed), ""),
        peak_bytes_before=max(part.plan.peak_bytes_before for part in parts),
        peak_bytes_after=largest.peak_bytes_after,
        held_bytes=largest.held_bytes,
        weight_bytes_after=largest.weight_bytes_after,
        recomputed=sum(part.plan.recomputed for part in parts),
        **totals,
    )
