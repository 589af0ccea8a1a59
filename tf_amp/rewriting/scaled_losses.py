"""What becomes of scaled losses in graphs that arrive.

- Loss scales that nobody asked for are taken out of graphs that stay float32. Whether a
  graph goes to float16 is known when it is planned, long after its gradients were
  scaled. Only the user's own wish for a loss scale goes before that.
- Branches taken where gradients are finite are made to cost little. The optimizer's
  updates are in one, with every variable and slot. TensorFlow puts a Switch and an
  Identity in front of each of them; both are taken out again. Then all that reads the
  learning rate or counts steps does so alike, and is made one.
- Gradients that a program uses itself are taken again where they overflowed. No
  optimizer skips a step for them: a sampler, a saliency map or whoever fetches them
  would go on with infinities until the scale has fallen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grappler_pass.annotations import FINITE_BRANCH
from tf_amp.config import scope_registry, workers
from tf_amp.config.workers import peers
from tf_amp.rewriting import host
from tf_amp.tracing.stamp_reader import settings_in

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

    from tf_amp.rewriting.arriving_graphs import Arrival


def without_unneeded_scales(arrival: Arrival) -> GraphDef | None:
    """Return a graph without loss scales; None where they are to stay.

    What is returned counts as rewritten, so that it never goes to float16 without them.
    """
    if arrival.is_changed or host.current().observer is not None:
        return None
    # Other processes may take part in what the graph computes.
    if workers.is_server() or workers.directed_key() or peers() is not None:
        return None
    from tensorflow.core.framework.types_pb2 import DT_HALF

    from grappler_pass.rewriting.apply import is_rewritten, with_marks
    from grappler_pass.rewriting.loss_scales import without_loss_scales

    graph_def = arrival.running
    scopes = [scope_registry.scope_of(each) for each in settings_in(graph_def)]
    # The user has named a loss scale for a part of the graph.
    is_asked_for = any(s is None or s.config.loss_scale is not None for s in scopes)
    if is_rewritten(graph_def) or not scopes or is_asked_for:
        return None
    values = (value for node in graph_def.node for value in node.attr.values())
    if any(value.type == DT_HALF or DT_HALF in value.list.type for value in values):
        return None
    changed = without_loss_scales(graph_def, arrival.item)
    if changed is None:
        return None
    return with_marks(changed, {node.name for node in changed.node})


def with_light_branches(arrival: Arrival) -> GraphDef | None:
    """Return a graph with light branches; None where there are none."""
    from grappler_pass.rewriting.branches import lighten_branches, merge_equal_reads

    before = graph_def = arrival.running
    for lighten in (lighten_branches, merge_equal_reads):
        graph_def = lighten(graph_def, FINITE_BRANCH, arrival.item) or graph_def
    return None if graph_def is before else graph_def


def with_second_tries(arrival: Arrival) -> GraphDef | None:
    """Return a graph with a second try; None for the same."""
    from grappler_pass.rewriting import second_try

    return second_try.with_second_tries(arrival.running)
