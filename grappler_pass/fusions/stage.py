"""What is fused in a graph before its types are chosen, and what is kept after it.

And what is saved where a graph arrives with less than what Keras 3 writes. It was
traced so, for want of a way to tell afterwards which operations of a graph are an
optimizer's, or a normalization's: `optimizer_fusions` and `layer_fusions` of
`tf_amp.training` say how.
"""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping

from grappler_pass.annotations import FUSED
from grappler_pass.costs import OpCall, TensorSpec
from grappler_pass.eligibility.reads import variable_of, variables_updated_by_rows
from grappler_pass.fusions import (
    CHANNEL_SCALES,
    FLAT_ACTIVATIONS,
    KEPT_WEIGHTS,
    RULE_TABLE,
    SHARED_SCALARS,
    kept_weights,
    scalars,
)
from grappler_pass.fusions.matching import Match, NewNodes, PricedGraph
from grappler_pass.graph.op_table import REF_VARIABLE_OPS
from grappler_pass.graph.shapes import variable_shape
from grappler_pass.graph.view import Node, Port
from grappler_pass.planning.draft import FORCED, PRICED, Draft
from grappler_pass.planning.plan import Cause, Fusion, Reason

# Element-wise operations and reductions of a kernel's largest operand that Keras writes
# in its place, counted in the graphs of Keras 3.15; gradients among them.
_OPERATIONS = {
    "FusedBatchNormV3": 17,
    # By GELU's derivative; with erf there are four more.
    "Mul": 2,
    "ResourceApplyGradientDescent": 2,
    "ResourceApplyKerasMomentum": 5,
    "ResourceApplyAdam": 12,
    "ResourceApplyAdamWithAmsgrad": 14,
    "ResourceApplyAdaMax": 11,
    "ResourceApplyRMSProp": 12,
    "ResourceApplyCenteredRMSProp": 18,
    "ResourceApplyAdadelta": 17,
    "ResourceApplyAdagradV2": 7,
    "ResourceApplyFtrlV2": 20,
}
_GRADIENTS = {"FusedBatchNormV3": "FusedBatchNormGradV3"}
_NOT_IN_FLOAT16 = {
    CHANNEL_SCALES: "weights times small scales may lose bits in float16",
    FLAT_ACTIVATIONS: "oneDNN has only its slow reference kernel in float16",
}
_MATCHES: Mapping[str, Callable[[PricedGraph], Iterator[Match]]] = {
    name: pkgutil.resolve_name(f"{__package__}.{rule.matches}")
    for name, rule in RULE_TABLE.items()
    if rule.matches
}


def share_scalars(draft: Draft) -> Draft:
    """Return the draft of a graph that computes once what updates share of scalars.

    It counts as the graph that was given: it has the same values, bit by bit, and fewer
    nodes, so that no step need be compared and nothing is ever withdrawn.
    """
    settings = draft.settings
    if SHARED_SCALARS not in settings.fusions or not _may_fuse(draft):
        return draft
    graph = PricedGraph(draft.view, {}, settings.models)
    found = list(scalars.shared_scalars(graph))
    if not found:
        return draft
    view = scalars.computed_once(draft.view, found)
    given = view.to_graph_def()
    reason = Reason(Cause.FUSED, RULE_TABLE[SHARED_SCALARS].gain)
    fusions = [Fusion(SHARED_SCALARS, s.read.name, s.seconds, reason) for s in found]
    return dataclasses.replace(
        draft, graph_def=given, given=given, view=view, traced_fusions=tuple(fusions)
    )


def _may_fuse(draft: Draft) -> bool:
    """Return whether graphs are fused: not where XLA does, nor at O0.

    Nor are graphs with reference variables, which may be written between two reads.
    """
    settings = draft.settings
    return (
        not settings.fuses
        and settings.opt_level in (PRICED, *FORCED)
        and not any(node.op in REF_VARIABLE_OPS for node in draft.view.nodes)
    )


def fuse(draft: Draft) -> Draft:
    """Return the draft of the graph with all in it fused that surely pays.

    What is not done in float16 is left out where a graph stays float32 as well.
    """
    settings = draft.settings
    traced = traced_kernels(PricedGraph(draft.view, draft.shapes, settings.models))
    draft = dataclasses.replace(draft, traced_fusions=(*draft.traced_fusions, *traced))
    if not _may_fuse(draft):
        return draft
    for rule, matches_in in _MATCHES.items():
        kept, why_off = frozenset[Port](), None
        if rule == CHANNEL_SCALES and kept_weights.is_wanted(settings):
            kept = kept_weights.ports_of_variables(draft.view)
        if rule not in settings.fusions:
            why_off = Reason(Cause.FUSION_OFF)
        elif settings.low_dtype == "float16" and rule in _NOT_IN_FLOAT16:
            why_off = Reason(Cause.FUSION_OFF, _NOT_IN_FLOAT16[rule])
        models, onednn = settings.models, settings.onednn
        graph = PricedGraph(
            draft.view, draft.shapes, models, kept, onednn, settings.low_dtype
        )
        matches = list(matches_in(graph))
        seconds = [(match.root, match.seconds) for match in matches]
        draft = _with_rewrites(draft, rule, seconds, why_off)
        paying = [match for match in matches if match.seconds > 0.0 and not why_off]
        if paying:
            edited, shapes = draft.view.copy(), dict(draft.shapes)
            for match in paying:
                match.write(NewNodes(graph, edited, shapes, match))
            fused = edited.to_graph_def()
            draft = dataclasses.replace(
                draft, graph_def=fused, view=edited, shapes=shapes
            )
    return draft


def keep_weights(draft: Draft) -> Draft:
    """Return the draft with a graph that keeps what it computes of variables alone.

    Unchanged where XLA compiles the graph, or the process is none that keeps weights.
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
    rewritten = draft.rewritten
    if paying := [each for each in found if each.seconds > 0.0]:
        rewritten = kept_weights.rewritten(graph, paying)
    return dataclasses.replace(draft, plan=plan, rewritten=rewritten)


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
    done, left = Reason(Cause.FUSED, RULE_TABLE[rule].gain), Reason(Cause.FUSION_COST)
    fusions, declined = list(draft.fusions), list(draft.declined_fusions)
    for node, saved in seconds:
        if why_off or saved <= 0.0:
            declined.append(Fusion(rule, node.name, saved, why_off or left))
        else:
            fusions.append(Fusion(rule, node.name, saved, done))
    return dataclasses.replace(
        draft, fusions=tuple(fusions), declined_fusions=tuple(declined)
    )


def traced_kernels(graph: PricedGraph) -> tuple[Fusion, ...]:
    """Return the kernels of a graph that take the place of what Keras writes."""
    view = graph.view
    marked = [node for node in view.nodes if FUSED in node.proto.attr]
    updated = variables_updated_by_rows(view) if marked else frozenset()
    fusions = []
    for node in marked:
        rule, seconds = node.proto.attr[FUSED].s.decode(), 0.0
        if node.op != "ResourceGather":
            seconds = _seconds_of_kernel(node, graph)
        elif variable_of(view, node.inputs[0]) in updated:
            # The variable that rows are read from is not copied.
            shape = variable_shape(view.nodes[node.inputs[0].node].proto)
            whole = (TensorSpec(shape, "float32"),)
            copy = OpCall("DeepCopy", {}, whole, whole)
            seconds = graph.model(node).price(copy, "float32").seconds
        seconds *= view.weight(node.index)
        traced = Reason(Cause.TRACED, RULE_TABLE[rule].gain)
        fusions.append(Fusion(rule, node.name, seconds, traced))
    return tuple(fusions)


def _seconds_of_kernel(node: Node, graph: PricedGraph) -> float:
    """Return what one run of a kernel saves, as it is predicted."""
    # All else are handles, scalars and vectors of channels.
    known = map(graph.shape, node.inputs)
    shape = max((s for s in known if s), key=len, default=None)
    if shape is None:
        return 0.0
    gradient = _GRADIENTS.get(node.op)
    spent = sum(
        graph.pass_seconds(node, op, shape, writes=bool(gradient))
        for op in filter(None, [node.op, gradient])
    )
    written = _OPERATIONS.get(node.op, 1) * graph.pass_seconds(node, "Mul", shape)
    return written - spent
