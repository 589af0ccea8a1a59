"""What callers of a function must know: which arguments update, what was unscaled.

update(gradient):  v -= rate * gradient      its argument only serves to update
gradients(x):      return unscale(...)       its results are behind a barrier
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from grappler_pass.function_calls import call_of
from grappler_pass.functions import FunctionError, Library, graph_from_function
from grappler_pass.graph import GraphView, Item, Node, Port
from grappler_pass.op_lists import OpLists
from grappler_pass.op_traits import is_update
from grappler_pass.reachability import UNREACHED
from grappler_pass.state_updates import behind_barriers, live_nodes, state_update_region


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a function does with its arguments.

    Attributes:
      updating: numbers of those that only serve to update variables.
      unscales: whether a result is behind a barrier, wherever its arguments come from.
    """

    updating: frozenset[int] = frozenset()
    unscales: bool = False


_NONE = Facts()


class FactsOfFunctions:
    """The facts of each function of a library, found when first asked for."""

    def __init__(self, library: Library, lists: OpLists) -> None:
        """Answer for the functions of `library`, with `lists` of the low dtype."""
        self._library = library
        self._lists = lists
        self._known: dict[str, Facts] = {}

    def of(self, name: str) -> Facts:
        """Return the facts of a function."""
        if name not in self._known:
            # A function that calls itself is met a second time.
            self._known[name] = _NONE
            self._known[name] = self._find(name)
        return self._known[name]

    def completed(self, item: Item, view: GraphView) -> Item:
        """Return an item that also tells what the functions do that a graph calls."""
        updates: list[tuple[str, int]] = []
        barriers = list(item.barriers)
        for node in view.nodes:
            call = call_of(node.proto, self._library)
            if call is None:
                continue
            facts = [self.of(name) for name in call.functions]
            common = frozenset.intersection(*(each.updating for each in facts))
            updates.extend((node.name, call.first + i) for i in sorted(common))
            if any(each.unscales for each in facts):
                barriers.append(node.name)
        return dataclasses.replace(
            item, updates=tuple(updates), barriers=tuple(barriers)
        )

    def _find(self, name: str) -> Facts:
        try:
            graph_def, item = graph_from_function(self._library[name], self._library)
        except FunctionError:
            return _NONE
        view = GraphView.from_graph_def(graph_def, item)
        item = self.completed(item, view)
        view = GraphView.from_graph_def(graph_def, item)
        behind = behind_barriers(view)
        unscales = any(behind[view.index[name]] != UNREACHED for name in item.fetch)
        return Facts(frozenset(self._updating(view)), unscales)

    def _updating(self, view: GraphView) -> Iterator[int]:
        """Yield the arguments of which every live reader is an update, or feeds one."""
        region = state_update_region(view, self._lists)
        live = live_nodes(view)
        by_calls = set(view.item.updates)
        for number, name in enumerate(view.item.feed):
            readers = view.readers(Port(view.index[name], 0))
            if readers and all(
                not live[reader.node]
                or region[reader.node] != UNREACHED
                or is_update(view.nodes[reader.node].op)
                or (_name(view, reader.node), reader.input) in by_calls
                for reader in readers
            ):
                yield number


def _name(view: GraphView, node: int) -> str:
    found: Node = view.nodes[node]
    return found.name
