"""What finding out about one graph has taken, remembered between processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.cached_attributes import cached_attribute
from grappler_pass.graph.shapes import Shapes
from tf_amp.measuring.fingerprint import fingerprint_of_graph
from tf_amp.measuring.known_costs import KnownCosts


@dataclasses.dataclass(frozen=True)
class GraphLedger:
    """The `Ledger` of a graph, in the database of measured costs.

    One of other shapes is another graph: what takes long there need not take long here.

    Attributes:
      costs: of the device that the graph runs on.
      graph_def: the graph, looked at only if something is left to be found out.
      shapes: returns its static shapes; called only then, too.
    """

    costs: KnownCosts
    graph_def: GraphDef
    shapes: Callable[[], Shapes] = dict

    def spent(self) -> float:
        """Return the seconds that earlier processes have spent on the graph."""
        return self.costs.spent(self._fingerprint)

    def keep(self, seconds: float) -> None:
        """Remember what it has taken, earlier processes included."""
        self.costs.keep_spent(self._fingerprint, seconds)

    @cached_attribute
    def _fingerprint(self) -> str:
        return fingerprint_of_graph(self.graph_def, self.shapes())
