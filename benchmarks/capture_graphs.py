"""Save graphs as an optimizer plugin of TensorFlow gets to see them.

``python -m benchmarks.capture_graphs FOLDER`` writes, for each model and mode,
``<model>_<mode>.pb`` (a GraphDef, as of the first iteration) and a ``.json`` with the
names to fetch and to preserve and the shapes of all outputs by node.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
from tensorflow.core.framework.graph_pb2 import GraphDef

from benchmarks.catalog import MODELS, MODES, entry
from benchmarks.steps import build_model, step_of
from grappler_pass import plugin
from grappler_pass.graph.device_types import Home
from grappler_pass.graph.shapes import Shapes
from grappler_pass.graph.view import Graph, Item


@dataclass(frozen=True)
class CapturedGraph:
    """A serialized GraphDef with what TensorFlow tells beside it."""

    graph_def: bytes
    fetch: tuple[str, ...]
    preserve: tuple[str, ...]
    shapes: Shapes

    def view_on_cpu(self) -> Graph:
        """Return the graph as it runs on a CPU."""
        item = Item(fetch=self.fetch, preserve=self.preserve)
        return Graph(GraphDef.FromString(self.graph_def), item, Home("CPU"))


def capture(first_call: Callable[[], object]) -> CapturedGraph:
    """Return the graph of a function that ``first_call`` calls for the first time.

    Small graphs that are made on the way (initializers, datasets) are left out: the
    largest counts, and of its two iterations the first.
    """
    return max(captured(first_call), key=lambda each: len(each.graph_def))


def captured(first_call: Callable[[], object]) -> list[CapturedGraph]:
    """Return each graph that TensorFlow optimizes during a call, once per iteration."""
    seen: list[CapturedGraph] = []

    def keep(graph_def: bytes, item: plugin.GrapplerItem) -> None:
        fetch, preserve = item.fetch, item.preserve
        names = [node.name for node in GraphDef.FromString(graph_def).node]
        seen.append(CapturedGraph(graph_def, fetch, preserve, item.shapes(names)))

    plugin.load(keep, ("CPU",))
    try:
        first_call()
    finally:
        plugin.clear_callback()
    return seen


def save(graph: CapturedGraph, stem: Path) -> None:
    """Write the graph beside its names and shapes."""
    facts = {"fetch": graph.fetch, "preserve": graph.preserve, "shapes": graph.shapes}
    stem.with_suffix(".pb").write_bytes(graph.graph_def)
    stem.with_suffix(".json").write_text(json.dumps(facts))


def main() -> None:
    """Capture the models named on the command line, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(each.name for each in MODELS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.models.split(","):
        keras.backend.clear_session()
        model = build_model(entry(name))
        for mode in MODES:
            graph = capture(step_of(model, entry(name), mode))
            save(graph, options.folder / f"{name}_{mode}")
            print(f"{name} {mode}: {len(graph.shapes)} nodes with outputs")


if __name__ == "__main__":
    main()
