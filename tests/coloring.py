"""Colors of named nodes of a text graph, so that a test of propagation is one line."""

from __future__ import annotations

import dataclasses

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.eligibility.rules import Constraints, constrain
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.type_slots import SlotTable
from grappler_pass.graph.view import Graph, Item
from grappler_pass.planning.plan import Cause
from tests.text_graph import graph_from_text


@dataclasses.dataclass(frozen=True)
class Colored:
    """A graph with what propagation says of it."""

    view: Graph
    slots: SlotTable
    constraints: Constraints

    def colors(self, names: str) -> str:
        """Return for each named node (or `node.attr`) L, F, or - without a slot."""
        return " ".join(self._color(name) for name in names.split())

    def _color(self, name: str) -> str:
        found = self.slots_called(name)
        if not found:
            return "-"
        kinds = {self.constraints.eligible[slot] for slot in found}
        return "/".join("L" if kind else "F" for kind in sorted(kinds))

    def slots_called(self, name: str) -> list[int]:
        """Return the slots of a node, or the one written as node.attr or attr[i]."""
        own = (
            self.slots.slots_of[self.view.index[name]]
            if name in self.view.index
            else ()
        )
        named = [i for i, slot in enumerate(self.slots.slots) if str(slot) == name]
        return [*own, *named]

    def cause(self, name: str) -> Cause:
        """Return why the first slot of a node is what it is."""
        return self.constraints.reasons[self.slots_called(name)[0]].cause

    def detail(self, name: str) -> str:
        """Return the detail of that reason."""
        return self.constraints.reasons[self.slots_called(name)[0]].detail

    def tied(self, first: str, second: str) -> bool:
        """Return whether two nodes' first slots must agree."""
        pair = {self.slots_called(first)[0], self.slots_called(second)[0]}
        return any(pair <= set(group) for group in self.constraints.ties)


def color(
    graph: str | GraphDef,
    *,
    fetch: str = "",
    feed: str = "",
    low_dtype: str = "bfloat16",
    lists: OpLists | None = None,
    opt_level: str = "O1",
    exclude: tuple[str, ...] = (),
) -> Colored:
    """Run propagation on a graph; `fetch` and `feed` are names with spaces between."""
    graph_def = graph_from_text(graph) if isinstance(graph, str) else graph
    item = Item(fetch=tuple(fetch.split()), feed=tuple(feed.split()))
    view = Graph(graph_def, item, Home("CPU"))
    constraints = constrain(
        view,
        _shapes_of(graph_def),
        lists or OpLists.for_dtype(low_dtype),
        low_dtype,
        uses_lists=opt_level != "O3",
        exclude=exclude,
    )
    return Colored(view, constraints.slots, constraints)


def _shapes_of(graph_def: GraphDef) -> Shapes:
    """Return static shapes; none of a graph that is only a sketch of one."""
    try:
        return shapes_from_graph_def(graph_def)
    except (ValueError, tf.errors.NotFoundError):
        return {}
