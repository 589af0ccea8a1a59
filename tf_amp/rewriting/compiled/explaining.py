"""The plan of a function that XLA compiles, without running it.

The function's graph as traced is planned, with the bodies of its loops and branches and
the functions it calls, by the same settings and prices as when it is rewritten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tf_amp._tensorflow_private import functions as private
from tf_amp.rewriting.compiled.pricing import settings_under_xla
from tf_amp.tracing import grappler_preview

if TYPE_CHECKING:
    from grappler_pass.functions.plan_merging import PlanPart
    from grappler_pass.graph.view import Item
    from grappler_pass.planning.draft import Settings
    from grappler_pass.planning.plan import Plan

# From a graph and what is kept of it to what the pass receives.
SettingsOf = Callable[[Any, "Item"], "tuple[Item, Settings]"]


def plan_with_compiled(plan: Plan, graph: Any, settings_of: SettingsOf) -> Plan:
    """Return a function's plan, with the rows of compiled functions that it calls.

    Args:
      plan: of the function itself, which is not compiled.
      graph: of that function, as traced.
      settings_of: returns item and settings of a graph.
    """
    from grappler_pass.functions.plan_merging import PlanPart, merged

    parts = [PlanPart("", 1.0, plan)]
    for callee in private.compiled_callees(graph):
        parts.append(PlanPart(callee.name, 1.0, plan_of_compiled(callee, settings_of)))
    return merged(parts) if len(parts) > 1 else plan


def plan_of_compiled(graph: Any, settings_of: SettingsOf) -> Plan:
    """Return the plan of a function that XLA compiles, given its graph as traced.

    Raises:
      StageError: the plan cannot be made; the message names the stage.
    """
    from grappler_pass.functions.plan_merging import merged
    from grappler_pass.graph.shapes import shapes_from_graph_def
    from grappler_pass.graph.view import Item

    graph_def = grappler_preview.graph_with_variables(graph)
    item = Item(fetch=grappler_preview.kept_nodes(graph))
    shapes = functools.partial(shapes_from_graph_def, graph_def)
    return merged(tuple(_parts(graph_def, item, shapes, graph.name, settings_of)))


def _parts(
    graph_def: Any, item: Item, shapes: Any, name: str, settings_of: SettingsOf
) -> Iterator[PlanPart]:
    from grappler_pass import pipeline
    from grappler_pass.functions.bodies import bodies_of
    from grappler_pass.functions.plan_merging import PlanPart
    from grappler_pass.rewriting.apply import is_rewritten

    lists = settings_of(graph_def, item)[1].lists
    for body in bodies_of(graph_def, item, shapes, lists):
        if is_rewritten(body.graph_def):
            continue
        own_item, chosen = settings_of(body.graph_def, body.item)
        plan = pipeline.plan_graph(
            body.graph_def,
            own_item,
            settings_under_xla(chosen),
            shapes=body.shapes,
            name=body.name or name,
        )
        yield PlanPart(body.name, body.weight, plan)
