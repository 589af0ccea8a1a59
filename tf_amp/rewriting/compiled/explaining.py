"""The plan of a function that XLA compiles, without running it.

The function's graph as traced is planned, with the bodies of its loops and branches and
the functions it calls, by the same settings and prices as when it is rewritten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_amp._tensorflow_private import functions as private
from tf_amp.rewriting.compiled.homes import device_type_of_compiled
from tf_amp.rewriting.compiled.pricing import settings_with_steps
from tf_amp.tracing import grappler_preview
from tf_amp.tracing.graph_names import name_of

if TYPE_CHECKING:
    from grappler_pass.functions.plan_merging import PlanPart
    from grappler_pass.graph.view import Item
    from grappler_pass.planning.draft import Draft, Settings
    from grappler_pass.planning.plan import Plan

# From a graph, what is kept of it and its device's type to what the pass receives.
SettingsOf = Callable[[Any, "Item", str], "tuple[Item, Settings]"]


class DraftPart(NamedTuple):
    """The draft of one function's body, and how often it runs per step.

    Its name is put before those of its nodes; the outermost function has none.
    """

    name: str
    weight: float
    draft: Draft


def plan_with_compiled(plan: Plan, graph: Any, settings_of: SettingsOf) -> Plan:
    """Return a function's plan, with the rows of compiled functions that it calls.

    Args:
      plan: of the function itself, which is not compiled.
      graph: of that function, as traced.
      settings_of: returns item and settings of a graph.
    """
    from grappler_pass.functions.plan_merging import PlanPart, merged

    called = drafts_of_callees(graph, settings_of)
    return merged((PlanPart("", 1.0, plan), *plan_parts(called))) if called else plan


def plan_of_compiled(graph: Any, settings_of: SettingsOf) -> Plan:
    """Return the plan of a function that XLA compiles, given its graph as traced.

    Raises:
      StageError: the plan cannot be made; the message names the stage.
    """
    from grappler_pass.functions.plan_merging import merged

    return merged(plan_parts(drafts_of_compiled(graph, settings_of)))


def plan_parts(parts: Iterable[DraftPart]) -> tuple[PlanPart, ...]:
    """Return the plans of some drafts, to be merged."""
    from grappler_pass.functions.plan_merging import PlanPart

    return tuple(PlanPart(name, weight, each.plan) for name, weight, each in parts)


def drafts_of_callees(graph: Any, settings_of: SettingsOf) -> tuple[DraftPart, ...]:
    """Return the drafts of the compiled functions that a function calls, as traced."""
    return tuple(
        part._replace(name=f"{callee.name}/{part.name}".rstrip("/"))
        for callee in private.compiled_callees(graph)
        for part in drafts_of_compiled(callee, settings_of)
    )


def drafts_of_compiled(graph: Any, settings_of: SettingsOf) -> tuple[DraftPart, ...]:
    """Return the drafts of a function that XLA compiles, and of what is called in it.

    Raises:
      StageError: a plan cannot be made; the message names the stage.
    """
    from grappler_pass.graph.shapes import shapes_from_graph_def
    from grappler_pass.graph.view import Item

    graph_def = grappler_preview.graph_with_variables(graph)
    item = Item(fetch=grappler_preview.kept_nodes(graph))
    shapes = functools.partial(shapes_from_graph_def, graph_def)
    device_type = device_type_of_compiled()

    def at_home(graph_def: Any, item: Item) -> tuple[Item, Settings]:
        return settings_of(graph_def, item, device_type)

    return tuple(_parts(graph_def, item, shapes, name_of(graph), at_home))


def _parts(
    graph_def: Any,
    item: Item,
    shapes: Any,
    name: str,
    at_home: Callable[[Any, Item], tuple[Item, Settings]],
) -> Iterator[DraftPart]:
    from grappler_pass import pipeline
    from grappler_pass.functions.bodies import bodies_of
    from grappler_pass.rewriting.apply import is_rewritten

    lists = at_home(graph_def, item)[1].lists
    for body in bodies_of(graph_def, item, shapes, lists):
        if is_rewritten(body.graph_def):
            continue
        own_item, chosen = at_home(body.graph_def, body.item)
        draft = pipeline.draft_graph(
            body.graph_def,
            own_item,
            settings_with_steps(chosen),
            shapes=body.shapes,
            name=body.name or name,
        )
        yield DraftPart(body.name, body.weight, draft)
