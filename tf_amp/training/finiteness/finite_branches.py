"""Branches taken where gradients are finite, and how they are made to cost little.

The optimizer's updates are in one, with every variable and slot. TensorFlow puts a
Switch and an Identity in front of each of them; both are taken out again here. Then all
that reads the learning rate or counts steps does so alike, and is made one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grappler_pass.graph.view import Item

# The name of these branches, which is part of those of their Switches.
NAME = "tf_amp_if_finite"
_NAME = NAME.encode()


def lightened(
    graph: bytes, rewritten: bytes | None, item: Callable[[], Item]
) -> bytes | None:
    """Return a serialized GraphDef with light branches.

    Args:
      graph: as TensorFlow has passed it.
      rewritten: in mixed precision; None: as it was.
      item: returns what TensorFlow relies on.

    Returns:
      `rewritten`, where there are no such branches.
    """
    data = graph if rewritten is None else rewritten
    if _NAME not in data:
        return rewritten
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from grappler_pass.rewriting.branches.equal_reads import merge_equal_reads
    from grappler_pass.rewriting.branches.switches import lighten_branches

    before = graph_def = GraphDef.FromString(data)
    for lighten in (lighten_branches, merge_equal_reads):
        graph_def = lighten(graph_def, NAME, item()) or graph_def
    return rewritten if graph_def is before else bytes(graph_def.SerializeToString())
