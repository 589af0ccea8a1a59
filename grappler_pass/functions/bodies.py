"""A graph and the functions it calls, each as an item of its own.

    step --> while --> body of the while --> function called in it

A function's arguments and results keep their types, so every body can be planned and
rewritten alone. What is known where it is called comes along: shapes, how often it
runs, and which arguments are gradients that were unscaled already.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.python.framework import tensor_util

from grappler_pass.eligibility.reachability import UNREACHED
from grappler_pass.eligibility.state_updates import behind_barriers
from grappler_pass.functions.body_facts import FactsOfFunctions
from grappler_pass.functions.calls import Call, call_of, callers_first
from grappler_pass.functions.conversion import (
    FunctionError,
    Known,
    Library,
    graph_from_function,
    library_of,
    reachable_from,
)
from grappler_pass.graph.loops import TRIP_COUNT_GUESS, compared_to, counts_in
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_table import ALLOW, WHILE_OPS
from grappler_pass.graph.shapes import (
    Shape,
    Shapes,
    known_shape,
    shape_from_proto,
    shapes_from_graph_def,
)
from grappler_pass.graph.view import GraphView, Item, Node, Port

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


@dataclasses.dataclass(frozen=True)
class _Site:
    """A call of a function, as far as it bears on the function's body."""

    known: tuple[Known, ...]
    unscaled: frozenset[int]
    weight: float


def bodies_of(
    graph_def: GraphDef, item: Item, shapes: Callable[[], Shapes], lists: OpLists
) -> tuple[Body, ...]:
    """Return a graph and all the functions whose bodies may gain.

    The graph itself comes first, then the functions, callers first. Left out are those
    that are called in an unknown way, those whose types are not fixed, and those
    without an allow op. `shapes` of the graph are asked for once, if at all.
    """
    library = library_of(graph_def)
    wanted = {name for name in library if _may_gain(name, library, lists)}
    collector = _Collector(library, wanted, lists)
    found = [collector.noted(Body("", graph_def, item, functools.cache(shapes)))]
    for name in callers_first(graph_def.node, library):
        body = collector.body(name) if name in wanted else None
        if body is not None:
            found.append(body)
    return tuple(found)


def _may_gain(name: str, library: Library, lists: OpLists) -> bool:
    """Return whether a function, or one that it calls, has an allow op."""
    names = (name, *reachable_from(library[name].node_def, library))
    return any(
        lists.list_of(node.op) == ALLOW for n in names for node in library[n].node_def
    )


class _Collector:
    """Bodies one after another, each with what its callers know of it."""

    def __init__(self, library: Library, wanted: set[str], lists: OpLists) -> None:
        self._library = library
        self._wanted = wanted
        self._facts = FactsOfFunctions(library, lists)
        self._sites: dict[str, list[_Site]] = {}

    def body(self, name: str) -> Body | None:
        sites = self._sites.get(name)
        if not sites:
            return None
        function = self._library[name]
        try:
            graph_def, item = graph_from_function(
                function, self._library, sites[0].known
            )
        except FunctionError:
            return None
        unscaled = frozenset[int]().union(*(site.unscaled for site in sites))
        barriers = tuple(item.feed[number] for number in sorted(unscaled))
        body = Body(
            name,
            graph_def,
            dataclasses.replace(item, barriers=barriers),
            functools.cache(functools.partial(shapes_from_graph_def, graph_def)),
            sum(site.weight for site in sites),
        )
        return self.noted(body)

    def noted(self, body: Body) -> Body:
        """Return a body whose item knows of its calls; remember these for later."""
        if not any(call_of(node, self._library) for node in body.graph_def.node):
            return body
        view = GraphView.from_graph_def(body.graph_def, body.item)
        item = self._facts.completed(body.item, view)
        body = dataclasses.replace(body, item=item)
        behind = behind_barriers(dataclasses.replace(view, item=item))
        for node in view.nodes:
            call = call_of(node.proto, self._library)
            if call is not None and not self._wanted.isdisjoint(call.functions):
                site = self._site(body, view, node, call, behind)
                for name in call.functions:
                    self._sites.setdefault(name, []).append(site)
        return body

    def _site(
        self, body: Body, view: GraphView, node: Node, call: Call, behind: list[int]
    ) -> _Site:
        arguments = node.inputs[call.first :]
        weight = body.weight * view.weight(node.index)
        if node.op in WHILE_OPS:
            weight *= trip_count_of(view, node.index, self._library)
        return _Site(
            tuple(_known(body, view, port) for port in arguments),
            frozenset(
                i for i, port in enumerate(arguments) if behind[port.node] != UNREACHED
            ),
            weight,
        )


def _known(body: Body, view: GraphView, port: Port) -> Known:
    shape = known_shape(body.shapes(), view, port)
    return Known(shape, tuple(_contents(view, _source(view, port))))


def _source(view: GraphView, port: Port) -> Node:
    """Return the node that makes a handle, through names and loops."""
    node = view.nodes[port.node]
    while node.op == "Identity" or node.op in WHILE_OPS:
        # What goes around a loop comes out with the number that it went in by.
        port = node.inputs[port.output]
        node = view.nodes[port.node]
    return node


def _contents(view: GraphView, node: Node) -> Iterator[tuple[int, Shape | None]]:
    """Yield dtype and shape of what a handle refers to, where its node says so."""
    attr = node.proto.attr
    if "_handle_dtypes" in attr and "_handle_shapes" in attr:
        dtypes = attr["_handle_dtypes"].list.type
        shapes = attr["_handle_shapes"].list.shape
        for dtype, shape in zip(dtypes, shapes, strict=False):
            yield dtype, shape_from_proto(shape)
    elif node.op in _LISTS:
        yield attr["element_dtype"].type, _element_shape(view, node)


def _element_shape(view: GraphView, node: Node) -> Shape | None:
    """Return the shape that a list of tensors was made for."""
    source = view.nodes[node.inputs[0].node]
    if source.op != "Const":
        return None
    sizes = tensor_util.MakeNdarray(source.proto.attr["value"].tensor)
    if sizes.ndim == 0:
        return None
    return tuple(int(size) if size >= 0 else None for size in sizes)


def trip_count_of(view: GraphView, node: int, library: Library) -> float:
    """Return how often the body of loop number `node` of a graph runs; else a guess."""
    bounds = tuple(_bounds(view, view.nodes[node], library))
    return max(1.0, min(bounds)) if bounds else TRIP_COUNT_GUESS


def _bounds(view: GraphView, loop: Node, library: Library) -> Iterator[float]:
    """Yield what the counters in a loop's condition are compared to, where known."""
    condition = library.get(loop.proto.attr["cond"].func.name)
    if condition is None:
        return
    graph_def, item = graph_from_function(condition, library)
    inside = GraphView.from_graph_def(graph_def, item)
    for port in compared_to(inside.nodes, inside.index[item.fetch[0]]):
        bound = inside.source(port, ("Identity",))
        if bound.name in item.feed:
            argument = item.feed.index(bound.name)
            yield from _bound_outside(view, loop, argument, library)
        else:
            yield from counts_in(bound.proto)


def _bound_outside(
    view: GraphView, loop: Node, argument: int, library: Library
) -> Iterator[float]:
    """Yield a bound that the loop is called with: a constant, or another's count."""
    bound = view.source(loop.inputs[argument], ("Identity",))
    if bound.op in WHILE_OPS and bound.index != loop.index:
        # The loop of a gradient counts to what its forward loop has counted.
        yield from _bounds(view, bound, library)
    else:
        yield from counts_in(bound.proto)
