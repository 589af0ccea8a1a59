"""The pass: a GraphDef and its item in, a rewritten copy and its plan out.

    GraphDef + Item -> fused Graph -> Constraints + Prices -> Plan -> new GraphDef

`STAGES` is the whole of it. Each stage gets a frozen draft and returns one with more
filled in; the observer sees every draft with the seconds its stage took.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tensorflow.core.framework.graph_pb2 import GraphDef

from grappler_pass.eligibility.reads import VariableReads
from grappler_pass.eligibility.rules import constrain
from grappler_pass.errors import StageError
from grappler_pass.fusions import kept_weights
from grappler_pass.fusions.stage import fuse, keep_weights, share_scalars
from grappler_pass.garbage import collection_paused
from grappler_pass.graph.op_table import ALLOW
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Item
from grappler_pass.planning import coloring
from grappler_pass.planning.coloring import color_slots
from grappler_pass.planning.compiled_prices import pricer_of_compiled
from grappler_pass.planning.decisions import keep, plan_from_draft, recall, tried
from grappler_pass.planning.draft import Draft as Draft
from grappler_pass.planning.draft import Settings as Settings
from grappler_pass.planning.draft import plan_casts
from grappler_pass.planning.guessed_shapes import fill_shapes
from grappler_pass.planning.late_casts import with_late_casts
from grappler_pass.planning.live_set import predict_live_sets
from grappler_pass.planning.plan import Plan
from grappler_pass.planning.prices import Pricer, started_ops
from grappler_pass.rewriting.apply import apply, is_rewritten
from grappler_pass.rewriting.layouts import lay_out
from grappler_pass.rewriting.recomputation import recompute
from grappler_pass.rewriting.verify import verify_rewrite


class Rewrite(NamedTuple):
    """The outcome: the graph to run, and why it is so.

    Attributes:
      graph_def: the very GraphDef given where nothing changed.
      plan: a dtype and a reason for every slot; None for a graph this pass made.
      changed: whether `graph_def` is a new graph.
    """

    graph_def: GraphDef
    plan: Plan | None
    changed: bool


Observer = Callable[[str, Draft, float], None]


def _view(draft: Draft) -> Draft:
    view = draft.view_of(draft.graph_def)
    return dataclasses.replace(draft, view=view, given=draft.graph_def)


def _share(draft: Draft) -> Draft:
    shared = share_scalars(draft)
    if shared.given is not draft.given:
        verify_rewrite(draft.given, shared.given, draft.item)
    return shared


def _shape(draft: Draft) -> Draft:
    """Infer shapes where there is a product; nothing else can be in 16 bits."""
    lists = draft.settings.lists
    has_product = any(lists.list_of(node.op) == ALLOW for node in draft.view.nodes)
    if not has_product and not draft.is_shown:
        return dataclasses.replace(draft, shapes={})
    shapes = fill_shapes(draft.view, draft.infer_shapes())
    return dataclasses.replace(draft, shapes=shapes)


def constrained(draft: Draft) -> Draft:
    """Return a draft that knows what may be in 16 bits by its settings, at any cost."""
    settings = draft.settings
    constraints = constrain(
        draft.view,
        draft.shapes,
        settings.lists,
        settings.low_dtype,
        uses_lists=settings.uses_lists,
        exclude=settings.exclude,
        ranges=settings.ranges,
        fault_of=coloring.fault_of(draft),
    )
    return dataclasses.replace(draft, constraints=constraints, slots=constraints.slots)


def _price(draft: Draft) -> Draft:
    """Price what may be in 16 bits; where nothing may, no price changes the plan."""
    if not draft.has_candidates and not draft.is_shown:
        return draft
    settings = draft.settings
    reads = VariableReads.from_view(draft.view)
    kept = kept_weights.weights_of(draft.view, settings)
    home = settings.home.device_type if settings.home else "CPU"
    compiled = pricer_of_compiled(settings.models, home)
    devices = {
        kind: model.of_device if model.profile.roofline.dispatch_seconds else model
        for kind, model in settings.models.items()
    }
    pricer = (compiled if settings.fuses else Pricer)(
        draft.view,
        draft.slots,
        draft.shapes,
        devices,
        settings.low_dtype,
        reads,
        kept,
        settings.models,
    )
    prices = pricer.prices(draft.constraints.eligible)
    return dataclasses.replace(draft, reads=reads, kept=kept, prices=prices)


def _check(draft: Draft) -> Draft:
    """Have the kernels of the plan checked; plan again without those that are wrong."""
    while coloring.is_wrong(draft):
        draft = dataclasses.replace(constrained(draft), recalled=None)
        for stage in (_price, recall, color_slots):
            draft = stage(draft)
    return draft


def _plan(draft: Draft) -> Draft:
    casts = plan_casts(draft)
    if not draft.settings.fuses:
        casts = with_late_casts(draft.view, casts)
    draft = dataclasses.replace(draft, casts=casts)
    plan = plan_from_draft(draft)
    plan = dataclasses.replace(plan, unchecked=coloring.unchecked(draft))
    return dataclasses.replace(draft, plan=plan)


def _verify(draft: Draft) -> Draft:
    if draft.rewritten is not draft.given:
        verify_rewrite(draft.given, draft.rewritten, draft.item)
    return draft


PLANNING = (
    ("view", _view),
    ("share scalars", _share),
    ("shape", _shape),
    ("fuse", fuse),
    ("constrain", constrained),
    ("price", _price),
    ("recall", recall),
    ("assign", color_slots),
    ("check", _check),
    ("plan", _plan),
)
STAGES = (
    *PLANNING,
    ("rewrite", apply),
    ("lay out", lay_out),
    ("keep weights", keep_weights),
    ("recompute", recompute),
    ("verify", _verify),
    ("predict memory", predict_live_sets),
    ("try", tried),
    ("keep", keep),
)
# What follows from the graph alone if nothing is fused, and what depends on prices.
_UNPRICED, _PRICED = STAGES[:5], STAGES[5:]


def optimize(
    graph_def: GraphDef,
    item: Item,
    settings: Settings,
    *,
    shapes: Callable[[], Shapes],
    name: str = "",
    observer: Observer | None = None,
) -> Rewrite:
    """Rewrite a graph to 16 bits where the settings find that it pays.

    Args:
      graph_def: never written; returned itself where nothing changes.
      item: what the caller relies on.
      settings: dtype, level, lists, costs.
      shapes: infers static shapes; called only if there is an allow op.
      name: of the graph, human-readable.
      observer: called after each stage with its name, the draft and its seconds.

    Returns:
      The graph to run with its plan. A graph that this pass made passes unchanged.

    Raises:
      StageError: a stage failed; nothing was changed.
    """
    if is_rewritten(graph_def):
        return Rewrite(graph_def, None, changed=False)
    draft = Draft(graph_def, item, settings, shapes, name)
    return _rewrite_from(graph_def, _run(STAGES, draft, observer))


def optimize_at_each(
    graph_def: GraphDef,
    item: Item,
    settings: Sequence[Settings],
    *,
    shapes: Callable[[], Shapes],
    name: str = "",
) -> list[Rewrite]:
    """Rewrite a graph under each of several settings that differ in prices alone.

    Nothing is fused, which depends on prices, too.

    Raises:
      StageError: a stage failed.
    """
    if is_rewritten(graph_def):
        return [Rewrite(graph_def, None, changed=False) for _ in settings]
    unfused = dataclasses.replace(settings[0], fusions=())
    shared = _run(_UNPRICED, Draft(graph_def, item, unfused, shapes, name), None)
    drafts = (dataclasses.replace(shared, settings=each) for each in settings)
    return [_rewrite_from(graph_def, _run(_PRICED, d, None)) for d in drafts]


def _rewrite_from(arrived: GraphDef, draft: Draft) -> Rewrite:
    changed = draft.rewritten is not arrived
    return Rewrite(draft.rewritten, draft.plan, changed)


def draft_graph(
    graph_def: GraphDef,
    item: Item,
    settings: Settings,
    *,
    shapes: Callable[[], Shapes],
    name: str = "",
) -> Draft:
    """Return the draft of what `optimize` would do, with its plan, and all prices.

    Raises:
      StageError: a stage failed.
    """
    draft = Draft(graph_def, item, settings, shapes, name, is_shown=True)
    # Without own steps nothing after planning can change the plan.
    stages = PLANNING if settings.own_steps is None else STAGES
    draft = _run(stages, draft, None)
    if settings.fuses:
        # XLA starts all that it compiles as one, and does not hold what it fuses.
        return draft
    final = predict_live_sets(recompute(apply(draft))) if stages is PLANNING else draft
    graphs = graph_def, final.rewritten
    before, after = (started_ops(draft.view_of(graph)) for graph in graphs)
    plan = dataclasses.replace(final.plan, started_before=before, started_after=after)
    return dataclasses.replace(draft, plan=plan)


def _run(
    stages: tuple[tuple[str, Callable[[Draft], Draft]], ...],
    draft: Draft,
    observer: Observer | None,
) -> Draft:
    with collection_paused():
        for name, stage in stages:
            begin = time.perf_counter()
            try:
                draft = stage(draft)
            except Exception as error:
                raise StageError(name, error) from error
            if observer is not None:
                observer(name, draft, time.perf_counter() - begin)
    return draft
