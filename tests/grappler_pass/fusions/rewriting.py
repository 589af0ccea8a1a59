"""Graphs as text, fused on a CPU without 16-bit units."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.fusions import RULES
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.op_lists import OpLists
from grappler_pass.graph.shapes import Shape
from grappler_pass.graph.view import Item
from grappler_pass.pipeline import Rewrite, Settings, optimize
from tests.text_graph import graph_from_text

PROFILE = CostModel(DeviceProfile.load("cpu-generic"))


def fused(
    text: str, shapes: Mapping[str, Shape | None], item: Item, **given: object
) -> Rewrite:
    """Rewrite a graph; some shapes may be others than those of the rest."""
    sizes = {**shapes, **{name: given.pop(name) for name in shapes.keys() & given}}
    low_dtype = str(given.pop("low_dtype", "bfloat16"))
    settings = Settings(
        low_dtype=low_dtype,
        lists=OpLists.for_dtype(low_dtype),
        models={"CPU": PROFILE},
        fusions=RULES,
        home=Home("CPU"),
    )
    return optimize(
        graph_from_text(text),
        item,
        dataclasses.replace(settings, **given),
        shapes=lambda: {name: (shape,) for name, shape in sizes.items()},
    )


def fusing(
    before: str, shapes: Mapping[str, Shape | None], fetch: tuple[str, ...]
) -> Callable[..., Rewrite]:
    """Return `fused` for a graph and variants of it: text, item, shapes, settings."""

    def rewrite(text: str = before, item: Item | None = None, **given: object):
        return fused(text, shapes, item or Item(fetch=fetch), **given)

    return rewrite
