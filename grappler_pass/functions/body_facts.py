"""What callers of a function must know: which arguments update, what was unscaled.

update(gradient):  v -= rate * gradient      its argument only serves to update
gradients(x):      return unscale(...)       its results are behind a barrier
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from grappler_pass.eligibility.reachability import UNREACHED
from grappler_pass.eligibility.state_updates import (
    behind_barriers,
    live_nodes,
    state_update_region,
)
from grappler_pass.functions.calls import call_of
from grappler_pass.functions.conversion import (
    FunctionError,
    Library,
    graph_from_function,
)
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.op_traits import is_update
from grappler_pass.graph.type_slots import FLOATING
from grappler_pass.graph.view import GraphView, Item, Port, Reader


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a function does with its arguments.

    Attributes:
      updating: numbers of the floating ones that only serve to update variables.
      unread: numbers of those that it does not read.
      unscales: whether a result is behind a barrier, wherever its arguments come from.
    """

    updating: frozenset[int] = frozenset()
    unread: frozenset[int] = frozenset()
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
        """Return an item that also says what the functions do that a graph calls."""
        updates: list[tuple[str, int]] = []
        barriers = list(item.barriers)
        for node in view.nodes:
            call = call_of(node.proto, self._library)
            if call is None:
                continue
            facts = [self.of(name) for name in call.functions]
            updating = sorted(_updating_in_all(facts))
            updates.extend((node.name, call.first + i) for i in updating)
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
        view = dataclasses.replace(view, item=self.completed(item, view))
        behind = behind_barriers(view)
        unscales = any(behind[view.index[name]] != UNREACHED for name in item.fetch)
        readers = [view.readers(Port(view.index[name], 0)) for name in item.feed]
        unread = (number for number, found in enumerate(readers) if not found)
        floats = {
            number
            for number, arg in enumerate(self._library[name].signature.input_arg)
            if arg.type in FLOATING
        }
        updating = floats.intersection(self._updating(view, readers))
        return Facts(frozenset(updating), frozenset(unread), unscales)

    def _updating(
        self, view: GraphView, readers: Sequence[Sequence[Reader]]
    ) -> Iterator[int]:
        """Yield the arguments of which every live reader is an update, or feeds one."""
        region = state_update_region(view, self._lists)
        live = live_nodes(view)
        by_calls = set(view.item.updates)

        def serves_update(reader: Reader) -> bool:
            node = view.nodes[reader.node]
            in_region = region[reader.node] != UNREACHED or is_update(node.op)
            return in_region or (node.name, reader.input) in by_calls

        for number, found in enumerate(readers):
            if found and all(r.node not in live or serves_update(r) for r in found):
                yield number


def _updating_in_all(facts: Sequence[Facts]) -> frozenset[int]:
    """Return what updates in one function, and in no other serves another purpose."""
    harmless = frozenset.intersection(*(f.updating | f.unread for f in facts))
    return harmless & frozenset.union(*(f.updating for f in facts))
