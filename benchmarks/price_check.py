"""Compare what the cost model predicts with what the nodes of a real step take.

``python -m benchmarks.price_check mlp --mode train --variant builtin`` runs a step with
TensorFlow's tracing on and prints, for each op class and dtype, the seconds of all its
nodes as measured (the least of several steps, node by node) and as predicted.
"""

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2, types_pb2
from tensorflow.python.framework import op_def_registry
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.capture_graphs import captured
from benchmarks.catalog import entry, variant
from benchmarks.steps import Step, build_model, step_of
from benchmarks.variants import switch_on
from grappler_pass.costs import (
    CostModel,
    DeviceProfile,
    OpCall,
    TensorSpec,
    attrs_from_node_def,
)
from grappler_pass.costs.op_work import works_of
from grappler_pass.graph.shapes import Shapes

_LOW = {"bfloat16", "float16"}


@dataclass
class Row:
    """All nodes of one class in one dtype."""

    nodes: int = 0
    measured: float = 0.0
    predicted: float = 0.0
    source: str = ""


def capture(first_call: Callable[[], object]) -> tuple[list[Any], Shapes]:
    """Return the nodes of the graph that a first call executes, and their shapes."""
    seen = captured(first_call)
    # The largest graph is the step; the last of its iterations is what runs.
    most = max(len(each.graph_def) for each in seen) // 2
    last = [each for each in seen if len(each.graph_def) >= most][-1]
    return list(graph_pb2.GraphDef.FromString(last.graph_def).node), last.shapes


def trace(step: Step, steps: int) -> tuple[dict[str, float], dict[str, int]]:
    """Return what each node took, the least of several steps, and how often it ran."""
    least: dict[str, float] = {}
    runs: dict[str, int] = {}
    for _ in range(steps):
        with tempfile.TemporaryDirectory() as folder:
            options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
            with tf.profiler.experimental.Profile(folder, options):
                step()
            total: dict[str, float] = defaultdict(float)
            runs = defaultdict(int)
            for name, seconds in _events(Path(folder)):
                total[name] += seconds
                runs[name] += 1
        for name, seconds in total.items():
            least[name] = min(seconds, least.get(name, seconds))
    return least, runs


def _events(folder: Path) -> Iterable[tuple[str, float]]:
    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            for line in plane.lines:
                for event in line.events:
                    name = plane.event_metadata[event.metadata_id].name
                    node, _, op = name.partition(":")
                    if op and " " not in op:
                        yield node, event.duration_ps * 1e-12


def call_of(node: Any, nodes: Mapping[str, Any], shapes: Shapes) -> OpCall:
    """Return the call that a node makes."""
    ports = [port.partition(":") for port in node.input if not port.startswith("^")]
    inputs = [_spec(nodes[name], int(slot or 0), shapes) for name, _, slot in ports]
    outputs = range(len(shapes.get(node.name, ())))
    return OpCall(
        node.op,
        attrs_from_node_def(node),
        tuple(inputs),
        tuple(_spec(node, index, shapes) for index in outputs),
    )


def _spec(node: Any, index: int, shapes: Shapes) -> TensorSpec:
    known = shapes.get(node.name, ())
    shape = known[index] if index < len(known) else None
    return TensorSpec(shape, output_dtype(node, index))


def output_dtype(node: Any, index: int) -> str:
    """Return the dtype name of an output, from the op's definition."""
    arguments = op_def_registry.get(node.op).output_arg
    argument = arguments[min(index, len(arguments) - 1)]
    enum = argument.type
    if not enum and argument.type_attr:
        enum = node.attr[argument.type_attr].type
    return tf.DType(enum or types_pb2.DT_FLOAT).name


def dtype_of(node: Any) -> str:
    """Return the dtype that the node's main attribute names."""
    enum = node.attr["T"].type if "T" in node.attr else 0
    if not enum and "DstT" in node.attr:
        enum = node.attr["DstT"].type
    return tf.DType(enum or types_pb2.DT_FLOAT).name


def compare(step: Step, model: CostModel, steps: int) -> dict[tuple[str, str], Row]:
    """Return measured and predicted seconds by class and dtype."""
    graph, shapes = capture(step)
    nodes = {node.name: node for node in graph}
    seconds, runs = trace(step, steps)
    rows: dict[tuple[str, str], Row] = defaultdict(Row)
    for node in graph:
        if node.name not in seconds:
            continue
        call = call_of(node, nodes, shapes)
        dtype = dtype_of(node)
        priced = dtype if dtype in _LOW else "float32"
        works = works_of(call, priced)
        label = works[0].op_class if works else f"(free) {node.op}"
        if call.op == "Cast":
            label = f"Cast {call.inputs[0].dtype}>{call.outputs[0].dtype}"
        price = model.price(call, priced)
        row = rows[label, dtype]
        row.nodes += 1
        row.measured += seconds[node.name]
        row.predicted += price.seconds * runs[node.name]
        row.source = price.source
    return rows


def main() -> None:
    """Print the comparison for one model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--mode", default="train")
    # tf-amp's own rewriting has no place beside the capture of the graph.
    variants = ("float32", "keras", "builtin")
    parser.add_argument("--variant", default="float32", choices=variants)
    parser.add_argument("--profile", default="cpu-avx512-bf16")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--least", type=float, default=0.01, help="share to show")
    options = parser.parse_args()
    tf.config.threading.set_inter_op_parallelism_threads(1)
    switch_on(variant(options.variant).method)
    model = build_model(entry(options.model))
    step = step_of(model, entry(options.model), options.mode)
    rows = compare(step, CostModel(DeviceProfile.load(options.profile)), options.steps)
    total = sum(row.measured for row in rows.values())
    print(f"{'class':34} {'dtype':9} {'nodes':>5} {'measured':>9} {'priced':>9}  ratio")
    for (label, dtype), row in sorted(rows.items(), key=lambda item: -item[1].measured):
        if max(row.measured, row.predicted) >= options.least * total:
            print(_line(label, dtype, row))
    priced = sum(row.predicted for row in rows.values())
    print(_line("total (milliseconds)", "", Row(0, total, priced)))


def _line(label: str, dtype: str, row: Row) -> str:
    ratio = row.predicted / row.measured if row.measured else 0.0
    return (
        f"{label:34} {dtype:9} {row.nodes:5} {row.measured * 1e3:9.3f} "
        f"{row.predicted * 1e3:9.3f}  {ratio:5.2f} {row.source}"
    )


if __name__ == "__main__":
    main()
