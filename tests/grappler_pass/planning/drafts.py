"""Plans of graphs in text, at given prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.graph.shapes import shapes_from_graph_def
from grappler_pass.graph.view import Item, Port
from grappler_pass.pipeline import draft_graph
from grappler_pass.planning.coloring import problem_from_prices
from grappler_pass.planning.cut import Problem
from grappler_pass.planning.draft import Draft
from tests.rewriters import settings_of
from tests.text_graph import graph_from_text
from tf_amp.rewriting.graph_settings import settings_under_xla


def planned(
    text: str,
    prices: Any = "cpu-avx512-bf16",
    low_dtype: str = "bfloat16",
    *,
    feed: tuple[str, ...] = (),
    preserve: tuple[str, ...] = (),
    under_xla: bool = False,
    **given: object,
) -> Draft:
    """Return the draft of a graph of which `y` is fetched, at O1.

    Prices are those of a model, or of a shipped profile by its name; what else is
    `given` are settings.
    """
    graph = graph_from_text(text)
    if isinstance(prices, str):
        prices = CostModel(DeviceProfile.load(prices))
    settings = settings_of(low_dtype, "O1", models={"CPU": prices}, **given)
    return draft_graph(
        graph,
        Item(fetch=("y",), feed=feed, preserve=preserve),
        settings_under_xla(settings) if under_xla else settings,
        shapes=lambda: shapes_from_graph_def(graph),
    )


def types(draft: Draft) -> dict[str, str]:
    """Return the type of each node after the rewrite."""
    return {row.slot.node: row.dtype for row in draft.plan.decisions}


def low_nodes(draft: Draft) -> set[str]:
    """Return the names of the nodes in 16 bits."""
    return {row.slot.node for row in draft.plan.decisions if row.is_low}


def seconds(draft: Draft, node: str) -> tuple[float, float | None]:
    """Return what a node takes in float32 and in 16 bits."""
    index = draft.view.index[node]
    return draft.prices.float32[index], draft.prices.low[index]


def down(draft: Draft, node: str) -> float:
    """Return what it takes to cast a node's result to 16 bits."""
    return draft.prices.casts[Port(draft.view.index[node], 0)].down


def up(draft: Draft, node: str) -> float:
    """Return what it takes to cast a node's result to float32."""
    return draft.prices.casts[Port(draft.view.index[node], 0)].up


def problem_of(draft: Draft, tie: float = 0.0) -> tuple[Mapping[int, int], Problem]:
    """Return the variables of a draft, and what is to be cut."""
    return draft.constraints.variables, problem_from_prices(draft, tie)
