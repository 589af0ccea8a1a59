"""Who chooses the devices of graphs when these are rewritten."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grappler_pass.graph.shapes import Shapes
    from grappler_pass.graph.view import Item
    from grappler_pass.pipeline import Rewrite
    from grappler_pass.planning.draft import Settings

# Gets a graph as given and as rewritten; what it returns runs.
Placer = Callable[[Any, "Rewrite", "Item", "Shapes", "Settings"], "Rewrite"]

_placers: list[Placer] = []


def add(placer: Placer) -> None:
    """Let the placer added last choose, on any thread."""
    _placers.append(placer)


def remove(placer: Placer) -> None:
    """Let a placer choose no more; it may be one that does not."""
    with contextlib.suppress(ValueError):
        _placers.remove(placer)


def placed(
    rewrite: Rewrite,
    graph_def: Any,
    item: Item,
    shapes: Callable[[], Shapes],
    settings: Settings,
) -> Rewrite:
    """Return what is to run instead of a rewritten graph."""
    for placer in _placers[-1:]:
        return placer(graph_def, rewrite, item, shapes(), settings)
    return rewrite
