"""Where the handles of a stored model's variables go, and what is done with them.

A variable is a node of the graph, an object of the model, or both; functions get its
handle as an argument. What may share a handle is one group.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.functions import conversion
from grappler_pass.graph.op_table import (
    CALL_OPS,
    FORWARDING_OPS,
    MERGE_OPS,
    SWITCH_OPS,
    WHILE_OPS,
)
from grappler_pass.graph.view import split_input
from tf_amp.tools.convert.planner import MAIN

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

Readers = Callable[[str], tuple[tuple[NodeDef, int], ...]]

_PASSING = (FORWARDING_OPS - SWITCH_OPS) | MERGE_OPS


class Place(NamedTuple):
    """A tensor of a function, or of the graph itself (`MAIN`)."""

    function: str
    tensor: str


class Use(NamedTuple):
    """A data input that takes a handle."""

    function: str
    node: NodeDef
    input: int


@dataclasses.dataclass
class Group:
    """Variables whose handles meet, where they go, and what uses them."""

    places: set[Place] = dataclasses.field(default_factory=set)
    uses: list[Use] = dataclasses.field(default_factory=list)
    objects: set[int] = dataclasses.field(default_factory=set)
    keys: set[str] = dataclasses.field(default_factory=set)

    def take(self, other: Group) -> None:
        """Add all of another group to this one."""
        self.places |= other.places
        self.uses.extend(other.uses)
        self.objects |= other.objects
        self.keys |= other.keys


class Handles:
    """Groups of variables of a graph, found by following their handles."""

    def __init__(self, bodies: Mapping[str, GraphDef]) -> None:
        """Index the graph itself, under `MAIN`, and its functions as graphs.

        A function that cannot be taken for a graph is missing; what it does with a
        handle is not known.
        """
        self._bodies = bodies
        self._library = conversion.library_of(bodies[MAIN])
        self._readers = {name: _readers(body) for name, body in bodies.items()}
        self._group_of: dict[Place, Group] = {}

    def follow(self, place: Place) -> Group:
        """Return the group of the handle at `place`, which is followed from there."""
        group = self._group_of.get(place)
        if group is not None:
            return group
        group = Group()
        waiting = [place]
        while waiting:
            here = waiting.pop()
            met = self._group_of.get(here)
            if met is group:
                continue
            if met is not None:
                self._merge(group, met)
                continue
            self._group_of[here] = group
            group.places.add(here)
            for use in self._uses_of(here):
                onward = tuple(self._onward(use))
                waiting.extend(onward)
                if not onward:
                    group.uses.append(use)
        return group

    def join(self, places: Sequence[Place]) -> Group:
        """Make one group of those of several places."""
        group = self.follow(places[0])
        for place in places[1:]:
            self._merge(group, self.follow(place))
        return group

    def _merge(self, group: Group, other: Group) -> None:
        if group is other:
            return
        group.take(other)
        for place in other.places:
            self._group_of[place] = group

    def groups(self) -> tuple[Group, ...]:
        """Return all groups found so far."""
        return tuple({id(group): group for group in self._group_of.values()}.values())

    def arguments(self, function: str) -> tuple[Place, ...]:
        """Return the places of the arguments of a function."""
        arguments = self._library[function].signature.input_arg
        return tuple(Place(function, str(arg.name)) for arg in arguments)

    def _uses_of(self, place: Place) -> Iterator[Use]:
        readers = self._readers.get(place.function)
        if readers is None:
            yield Use(place.function, NodeDef(name=place.function, op="function"), 0)
            return
        for node, position in readers.get(place.tensor, ()):
            yield Use(place.function, node, position)

    def _onward(self, use: Use) -> Iterator[Place]:
        """Yield where a handle goes on to from a node that only hands it on."""
        node = use.node
        if node.op in _PASSING and _hands_on(node):
            yield Place(use.function, node.name)
        elif node.op == "Switch" and use.input == 0 and _hands_on(node):
            yield Place(use.function, node.name)
            yield Place(use.function, f"{node.name}:1")
        elif node.op in CALL_OPS or node.op in self._library:
            position = use.input - CALL_OPS.get(node.op, 0)
            if position >= 0:
                for called in conversion.called_by(node, self._library):
                    yield self.arguments(called)[position]
            if node.op in WHILE_OPS:
                yield Place(use.function, _tensor(node.name, use.input))


def _hands_on(node: NodeDef) -> bool:
    """Return whether a node hands a handle on, and not the value of a v1 variable."""
    return bool(node.attr["T"].type == types_pb2.DT_RESOURCE)


def _readers(body: GraphDef) -> dict[str, list[tuple[NodeDef, int]]]:
    """Return by tensor the nodes, and numbers of their data inputs, that read it."""
    readers: dict[str, list[tuple[NodeDef, int]]] = defaultdict(list)
    for node in body.node:
        for position, text in enumerate(node.input):
            name, output = split_input(text)
            if output >= 0:
                readers[_tensor(name, output)].append((node, position))
    return readers


def _tensor(name: str, output: int) -> str:
    return f"{name}:{output}" if output else name


def readers_in(body: GraphDef) -> Readers:
    """Return a function from a tensor of a graph to what reads it."""
    found = _readers(body)
    return lambda tensor: tuple(found.get(tensor, ()))
