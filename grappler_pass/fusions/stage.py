"""What is fused in a graph before its types are chosen, and what arrives so."""

from __future__ import annotations

import dataclasses

from grappler_pass.fusions import CHANNEL_SCALES, channel_scales
from grappler_pass.fusions.traced_kernels import traced_kernels
from grappler_pass.graph.view import GraphView
from grappler_pass.planning.draft import FORCED, PRICED, Draft
from grappler_pass.planning.plan import Fusion


def fuse(draft: Draft) -> Draft:
    """Return the draft of the graph with all in it fused that surely pays.

    Nothing where XLA fuses, nor in float16, where weights times small scales may
    lose bits that they keep by themselves.
    """
    settings = draft.settings
    traced = traced_kernels(draft.view, draft.shapes, settings.models)
    draft = dataclasses.replace(draft, traced_fusions=traced)
    if CHANNEL_SCALES not in settings.fusions or settings.fuses:
        return draft
    if settings.opt_level not in (PRICED, *FORCED) or settings.low_dtype == "float16":
        return draft
    folds = channel_scales.folds_in(draft.view, draft.shapes, settings.models)
    if not folds:
        return draft
    graph_def, shapes = channel_scales.folded(
        draft.graph_def, draft.view, draft.shapes, folds
    )
    return dataclasses.replace(
        draft,
        graph_def=graph_def,
        view=GraphView.from_graph_def(graph_def, draft.item),
        shapes=shapes,
        fusions=tuple(
            Fusion(CHANNEL_SCALES, fold.product.name, fold.seconds) for fold in folds
        ),
    )
