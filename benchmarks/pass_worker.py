"""One process of the measurement of the pass.

Started by ``pass_time`` as ``python -m benchmarks.pass_worker``. ``capture`` saves the
graph of a training step; ``optimize`` sends copies of it through TensorFlow's
meta-optimizer with nothing switched on but, where asked, tf-amp.
"""

import argparse
import dataclasses
import functools
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.grappler import tf_optimizer

from benchmarks.capture_graphs import capture, save
from benchmarks.catalog import entry
from benchmarks.executed import count_ops
from benchmarks.replicate import replicated
from benchmarks.steps import build_model, step_of
from grappler_pass import pipeline, plugin
from grappler_pass.graph import Item
from tf_amp.config import AmpConfig
from tf_amp.settings import settings_from_config

_PASSES_SWITCHED_OFF = (
    "arithmetic_optimization",
    "auto_mixed_precision",
    "common_subgraph_elimination",
    "constant_folding",
    "debug_stripper",
    "dependency_optimization",
    "function_optimization",
    "implementation_selector",
    "layout_optimizer",
    "loop_optimization",
    "pin_to_host_optimization",
    "remapping",
    "scoped_allocator_optimization",
    "shape_optimization",
)


def capture_training_step(stem: Path) -> None:
    """Save the graph of ResNet-50's training step under Adam, about 10,000 nodes."""
    described = dataclasses.replace(entry("resnet50"), optimizer="adam", train_batch=8)
    model = build_model(described)
    save(capture(step_of(model, described, "train")), stem)


def optimize(stem: Path, copies: int, *, with_pass: bool) -> dict[str, Any]:
    """Return time and memory of one call of the meta-optimizer."""
    stages: dict[str, float] = {}
    if with_pass:
        plugin.load(functools.partial(_rewrite, stages), ("CPU",))
    graph_def = GraphDef.FromString(stem.with_suffix(".pb").read_bytes())
    fetch = json.loads(stem.with_suffix(".json").read_text())["fetch"]
    meta_graph = MetaGraphDef(graph_def=replicated(graph_def, copies))
    meta_graph.collection_def["train_op"].node_list.value.extend(
        f"copy{number}/{name}" for number in range(copies) for name in fetch
    )
    before = _status_bytes("VmRSS")
    _forget_peak()
    start = time.perf_counter()
    result = tf_optimizer.OptimizeGraph(_config(), meta_graph)
    seconds = time.perf_counter() - start
    if with_pass and "verify" not in stages:
        raise RuntimeError(f"The pass ended early, after the stages {list(stages)}.")
    return {
        "nodes": len(meta_graph.graph_def.node),
        "graph_bytes": meta_graph.graph_def.ByteSize(),
        "low_nodes": count_ops(result.node).low,
        "seconds": seconds,
        "peak_bytes": _status_bytes("VmHWM") - before,
        "stages": stages,
    }


def _rewrite(
    stages: dict[str, float], graph_def: bytes, item: plugin.GrapplerItem
) -> bytes | None:
    """Do what tf-amp does with a graph under its default settings, and time it."""

    def observe(stage: str, draft: pipeline.Draft, seconds: float) -> None:
        stages[stage] = seconds

    rewrite = pipeline.optimize(
        GraphDef.FromString(graph_def),
        Item(fetch=item.fetch, preserve=item.preserve),
        settings_from_config(AmpConfig(), "CPU"),
        shapes=item.shapes,
        observer=observe,
    )
    return rewrite.graph_def.SerializeToString() if rewrite.changed else None


def _config() -> ConfigProto:
    config = ConfigProto()
    rewriting = config.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = RewriterConfig.ONE
    rewriting.memory_optimization = RewriterConfig.NO_MEM_OPT
    rewriting.disable_model_pruning = True
    for name in _PASSES_SWITCHED_OFF:
        setattr(rewriting, name, RewriterConfig.OFF)
    return config


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(each for each in lines if each.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _forget_peak() -> None:
    """Let the kernel measure the peak of the memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("capture", "optimize"))
    parser.add_argument("stem", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--with-pass", action="store_true")
    options = parser.parse_args(arguments)
    if options.action == "capture":
        capture_training_step(options.stem)
        return
    print(
        json.dumps(optimize(options.stem, options.copies, with_pass=options.with_pass))
    )


if __name__ == "__main__":
    main()
