"""Where the handles of a stored model's variables go, and what is done with them.

A variable is a node of the graph, an object of the model, or both; functions get its
handle as an argument. What may share a handle is one group.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tensorflow.core.framework import types_pb2
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.eligibility.regions import connected
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

Readers = Mapping[str, list[tuple[NodeDef, int]]]

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

    places: list[Place] = dataclasses.field(default_factory=list)
    uses: list[Use] = dataclasses.field(default_factory=list)
    objects: set[int] = dataclasses.field(default_factory=set)
    keys: set[str] = dataclasses.field(default_factory=set)


class Handles:
    """Groups of variables of a graph, found by following their handles."""

    def __init__(self, bodies: Mapping[str, GraphDef]) -> None:
        """Index the graph itself, under `MAIN`, and its functions as graphs.

        A function that cannot be taken for a graph is missing; what it does with a
        handle is not known.
        """
        self._library = conversion.library_of(bodies[MAIN])
        self._readers = {name: readers_in(body) for name, body in bodies.items()}
        self._uses: dict[Place, list[Use]] = {}
        self._meeting: list[tuple[Place, Place]] = []

    def follow(self, place: Place) -> None:
        """Follow the handle at `place` to all that takes it."""
        waiting = [place]
        while waiting:
            here = waiting.pop()
            if here in self._uses:
                continue
            self._uses[here] = []
            for use in self._uses_of(here):
                onward = tuple(self._onward(use))
                waiting.extend(onward)
                self._meeting.extend((here, there) for there in onward)
                if not onward:
                    self._uses[here].append(use)

    def join(self, places: Sequence[Place]) -> None:
        """Make one group of those of several places that were followed."""
        self._meeting.extend(itertools.pairwise(places))

    def groups(self) -> tuple[Group, ...]:
        """Return all groups found so far, of which nothing but handles is known."""
        places = tuple(self._uses)
        numbers = {place: number for number, place in enumerate(places)}
        alone = ((number, number) for number in numbers.values())
        meeting = ((numbers[first], numbers[second]) for first, second in self._meeting)
        return tuple(
            Group(
                places=[places[n] for n in members],
                uses=[use for n in members for use in self._uses[places[n]]],
            )
            for members in connected(itertools.chain(alone, meeting))
        )

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


def readers_in(body: GraphDef) -> Readers:
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
