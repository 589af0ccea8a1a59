"""A graph with all that a run of it needs: what comes in, and what is looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.planning.draft import Settings
from tf_amp.tools.graph_runs.differences import Array

Values = Mapping[str, Array]


@dataclasses.dataclass(frozen=True)
class Watched:
    """A tensor that is compared.

    It is named by who reads it where that can be done: the reader keeps its name and
    its type in a rewritten graph, where the tensor itself may be in 16 bits.

    Attributes:
      name: for people.
      kind: "output" or "gradient".
      node: name of the reader, or of the node that makes it.
      input: of the reader; None: `node` makes it.
      output: of the node that makes it.
    """

    name: str
    kind: str
    node: str
    input: int | None = None
    output: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A graph as Grappler passes it, to be run outside of its program.

    Attributes:
      graph_def: never written.
      item: what it is run for.
      shapes: static shapes by node name.
      settings: the pass's, for its rewrite.
      values: what is known of the data that comes in, by the names that a sandbox gives
        its contents: a variable's is that of its handle, a tensor's `node:output`.
      watched: the tensors to compare.
      name: of the graph, for people.
      variables: names of variables for people, by name of their handle.
      run_shapes: static shapes for the values at hand, where `shapes` leaves some open.
    """

    graph_def: GraphDef
    item: Item
    shapes: Shapes
    settings: Settings
    values: Values
    watched: tuple[Watched, ...] = ()
    name: str = ""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    run_shapes: Shapes | None = None

    @property
    def known_shapes(self) -> Shapes:
        """The shapes that a run has, as far as they are known."""
        return self.shapes if self.run_shapes is None else self.run_shapes
