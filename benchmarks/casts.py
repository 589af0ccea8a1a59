"""Casts that a step runs, and the bytes that they move: ``python -m benchmarks.casts``.

The steps of the models are planned by tf-amp, with the shipped profile of this kind of
CPU and without measuring, and by the pass that TensorFlow brings. Nothing is timed, so
that the figures are the same on every machine of the kind.
"""

from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from benchmarks.capture_graphs import CapturedGraph, capture
from benchmarks.cases import Found, measure_cases
from benchmarks.catalog import MODELS, MODES, entry
from benchmarks.steps import build_model, step_of
from benchmarks.variants import switch_on
from grappler_pass.graph.shapes import known_shape
from grappler_pass.graph.view import Graph, Item, Node
from grappler_pass.pipeline import optimize
from tf_amp.config import scope_registry
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting import graph_settings
from tf_amp.tools.bench.job import TENSORFLOW

_FLOAT32 = tf.float32.as_datatype_enum
_LOW = {tf.bfloat16.as_datatype_enum, tf.float16.as_datatype_enum}
_BYTES = {_FLOAT32: 4, **dict.fromkeys(_LOW, 2)}
_TITLES = (
    "model",
    "mode",
    "edges between types",
    "casts",
    "run per step",
    "MB moved",
    "TensorFlow: casts",
    "run per step",
    "MB moved",
)
_EXPLANATION = (
    "*edges between types*: inputs that read the other type under tf-amp's plan, as "
    "many casts as there would be without sharing, moving and dropping them. *run per "
    "step*: casts in loops count as often as the loop runs. *MB moved*: read and "
    "written by them. *TensorFlow*: its auto_mixed_precision_onednn_bfloat16."
)


@dataclass(frozen=True)
class Casts:
    """Between float32 and a 16-bit type in one graph.

    Attributes:
        nodes: how many there are.
        readers: inputs that read one.
        runs: executions per step.
        megabytes: read and written per step.
    """

    nodes: int
    readers: int
    runs: float
    megabytes: float


def counted(name: str) -> Found:
    """Return the row of each mode of a model; switches on TensorFlow's own pass."""
    model = build_model(entry(name))
    plain = {mode: capture(step_of(model, entry(name), mode)) for mode in MODES}
    switch_on(TENSORFLOW)
    rows = []
    for mode in MODES:
        ours = casts_in(rewritten(plain[mode]), plain[mode])
        theirs = capture(step_of(model, entry(name), mode))
        builtin = casts_in(GraphDef.FromString(theirs.graph_def), theirs)
        cells = (str(ours.readers), *_cells(ours), *_cells(builtin))
        rows.append((entry(name).title, mode, *cells))
    return rows, rows


def rewritten(graph: CapturedGraph) -> GraphDef:
    """Return a graph as tf-amp makes it without measuring anything."""
    graph_def = GraphDef.FromString(graph.graph_def)
    config = AmpConfig(enabled=True, tune="off", cache_dir=None)
    return optimize(
        graph_def,
        Item(fetch=graph.fetch, preserve=graph.preserve),
        graph_settings.settings_for(
            scope_registry.RegisteredScope("benchmark", config), graph_def
        ),
        shapes=lambda: graph.shapes,
        name="step",
    ).graph_def


def casts_in(graph_def: GraphDef, graph: CapturedGraph) -> Casts:
    """Count the casts between float32 and 16 bits, whoever put them there.

    Args:
        graph_def: to look at.
        graph: what knows the shapes of the tensors that are cast.
    """
    view = Graph(graph_def, Item(fetch=graph.fetch))
    found = [node for node in view.nodes if _is_between_types(node)]
    indices = {node.index for node in found}
    return Casts(
        nodes=len(found),
        readers=sum(p.node in indices for node in view.nodes for p in node.inputs),
        runs=sum(view.weight(node.index) for node in found),
        megabytes=sum(
            view.weight(node.index) * _bytes(view, node, graph) for node in found
        )
        / 1e6,
    )


def _is_between_types(node: Node) -> bool:
    if node.op != "Cast":
        return False
    ends = {node.proto.attr[name].type for name in ("SrcT", "DstT")}
    return _FLOAT32 in ends and bool(ends & _LOW)


def _bytes(view: Graph, node: Node, graph: CapturedGraph) -> int:
    shape = known_shape(graph.shapes, view, node.inputs[0])
    elements = 1
    for size in shape or ():
        elements *= size or 1
    return elements * sum(_BYTES[node.proto.attr[n].type] for n in ("SrcT", "DstT"))


def _cells(casts: Casts) -> tuple[str, str, str]:
    return (str(casts.nodes), f"{casts.runs:.0f}", f"{casts.megabytes:.1f}")


if __name__ == "__main__":
    names = [model.name for model in MODELS]
    measure_cases("casts", names, counted, _TITLES, _EXPLANATION)
