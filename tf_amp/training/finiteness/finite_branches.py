"""Branches taken where gradients are finite, and how they are made to cost little.

The optimizer's updates are in one, with every variable and slot. TensorFlow puts a
Switch and an Identity in front of each of them; both are taken out again here. Then all
that reads the learning rate or counts steps does so alike, and is made one. Where no
loss is scaled any more, nothing asks whether gradients are finite, and there is no
branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grappler_pass.annotations import FINITE_BRANCH

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from tf_amp.rewriting.arriving_graphs import Arrival

_NAME = FINITE_BRANCH.encode()


def lightened(arrival: Arrival) -> GraphDef | None:
    """Return a graph with light branches; None where there are none."""
    if _NAME not in arrival.data:
        return None
    from grappler_pass.rewriting.branches.equal_reads import merge_equal_reads
    from grappler_pass.rewriting.branches.known import without_known_branches
    from grappler_pass.rewriting.branches.switches import lighten_branches

    before = graph_def = arrival.running
    for lighten in (lighten_branches, merge_equal_reads, without_known_branches):
        graph_def = lighten(graph_def, FINITE_BRANCH, arrival.item) or graph_def
    return None if graph_def is before else graph_def
