"""What is fused in a graph before its types are chosen, and what is kept after it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from grappler_pass.fusions import (
    CHANNEL_SCALES,
    FLAT_ACTIVATIONS,
    GAINS,
    KEPT_WEIGHTS,
    LAYER_NORMS,
    NORMALIZED_BIASES,
    channel_scales,
    flat_activations,
    kept_weights,
    layer_norms,
    normalized_biases,
)
from grappler_pass.fusions.new_nodes import with_new_nodes
from grappler_pass.fusions.passes import PricedGraph
from grappler_pass.fusions.traced_kernels import traced_kernels
from grappler_pass.graph.op_table import REF_VARIABLE_OPS
from grappler_pass.graph.view import Node, Port
from grappler_pass.planning.draft import FORCED, PRICED, Draft, Settings
from grappler_pass.planning.plan import Cause, Fusion, Reason

_IN_FLOAT16 = "weights times small scales may lose bits in float16"
# In this order, since constants of a normalization wait for what activates its input.
# Each has `found` (what can be rewritten, each beginning with its `root`), `seconds`
# (that this saves per step) and `made` (what takes its place, under the names of all
# nodes that are replaced).
_MODULES = {
    CHANNEL_SCALES: channel_scales,
    FLAT_ACTIVATIONS: flat_activations,
    LAYER_NORMS: layer_norms,
    NORMALIZED_BIASES: normalized_biases,
}


def fuse(draft: Draft) -> Draft:
    """Return the draft of the graph with all in it fused that surely pays.

    Nothing where XLA fuses, nor in graphs with reference variables, which may be
    written between two reads. In float16 scales are not folded: weights times small
    ones may lose bits that they keep by themselves.
    """
    settings = draft.settings
    graph = PricedGraph(draft.view, draft.shapes, settings.models)
    draft = dataclasses.replace(draft, traced_fusions=traced_kernels(graph))
    if settings.fuses or settings.opt_level not in (PRICED, *FORCED):
        return draft
    if any(node.op in REF_VARIABLE_OPS for node in draft.view.nodes):
        return draft
    for rule, module in _MODULES.items():
        draft = _fused_by(rule, module, draft)
    return draft


def _why_off(rule: str, settings: Settings) -> Reason | None:
    """Return why a rule does nothing here; None where it may."""
    if rule not in settings.fusions:
        return Reason(Cause.FUSION_OFF)
    in_doubt = rule == CHANNEL_SCALES and settings.low_dtype == "float16"
    return Reason(Cause.FUSION_OFF, _IN_FLOAT16) if in_doubt else None


def keep_weights(draft: Draft) -> Draft:
    """Return the draft with a graph that keeps what it computes of variables alone.

    Where XLA compiles a graph, or the process is none that keeps weights, it stays as
    it is.
    """
    settings = draft.settings
    if not kept_weights.is_wanted(settings) or draft.shapes is None:
        return draft
    view = draft.view_of(draft.rewritten)
    graph = PricedGraph(view, draft.shapes, settings.models)
    found = kept_weights.found(graph)
    seconds = [(view.nodes[each.nodes[0]], each.seconds) for each in found]
    draft = _with_rewrites(draft, KEPT_WEIGHTS, seconds)
    plan = dataclasses.replace(
        draft.plan, fusions=draft.fusions, declined_fusions=draft.declined_fusions
    )
    draft = dataclasses.replace(draft, plan=plan)
    paying = [each for each in found if each.seconds > 0.0]
    if not paying:
        return draft
    rewritten = kept_weights.rewritten(draft.rewritten, graph, paying)
    return dataclasses.replace(draft, rewritten=rewritten)


def _with_rewrites(
    draft: Draft,
    rule: str,
    seconds: Iterable[tuple[Node, float]],
    why_off: Reason | None = None,
) -> Draft:
    """Return a draft that lists what a rule has found: what pays as done.

    Args:
      draft: under way.
      rule: its name.
      seconds: that each saves per step, with the node that it begins with.
      why_off: why none of them is done.
    """
    done, left = Reason(Cause.FUSED, GAINS[rule]), Reason(Cause.FUSION_COST)
    fusions, declined = list(draft.fusions), list(draft.declined_fusions)
    for node, saved in seconds:
        if why_off or saved <= 0.0:
            declined.append(Fusion(rule, node.name, saved, why_off or left))
        else:
            fusions.append(Fusion(rule, node.name, saved, done))
    return dataclasses.replace(
        draft, fusions=tuple(fusions), declined_fusions=tuple(declined)
    )


def _fused_by(rule: str, module: Any, draft: Draft) -> Draft:
    models, kept = draft.settings.models, frozenset[Port]()
    if rule == CHANNEL_SCALES and kept_weights.is_wanted(draft.settings):
        kept = kept_weights.ports_of_variables(draft.view)
    graph = PricedGraph(draft.view, draft.shapes, models, kept)
    why_off = _why_off(rule, draft.settings)
    found = [(each, module.seconds(each, graph)) for each in module.found(graph)]
    seconds = ((each.root, saved) for each, saved in found)
    draft = _with_rewrites(draft, rule, seconds, why_off)
    paying = [each for each, saved in found if saved > 0.0 and not why_off]
    if not paying:
        return draft
    made = [module.made(each, graph) for each in paying]
    graph_def, shapes = with_new_nodes(draft.graph_def, draft.shapes, made)
    return dataclasses.replace(
        draft,
        graph_def=graph_def,
        view=draft.view_of(graph_def),
        shapes=shapes,
    )
