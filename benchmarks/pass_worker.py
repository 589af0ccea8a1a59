"""One process of the measurement of the pass.

Started by ``pass_time`` as ``python -m benchmarks.pass_worker``. ``capture`` saves the
graph of a training step; ``optimize`` sends copies of it through TensorFlow's
meta-optimizer, where asked with tf-amp in it.
"""

import argparse
import dataclasses
import functools
import json
import time
from pathlib import Path
from typing import Any

from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.grappler import tf_optimizer

from benchmarks.capture_graphs import capture, save
from benchmarks.catalog import entry
from benchmarks.replicate import replicated
from benchmarks.steps import build_model, step_of
from grappler_pass import pipeline, plugin
from grappler_pass.graph.view import Item
from tf_amp.config.amp_config import AmpConfig
from tf_amp.rewriting.graph_settings import settings_from_config
from tf_amp.tools.bench.journal import count_ops


def capture_training_step(stem: Path) -> None:
    """Save the graph of ResNet-50's training step under Adam, about 10,000 nodes."""
    described = dataclasses.replace(entry("resnet50"), optimizer="adam", train_batch=8)
    model = build_model(described)
    save(capture(step_of(model, described, "train")), stem)


def optimize(stem: Path, copies: int, *, with_pass: bool) -> dict[str, Any]:
    """Return time and memory of one call of the meta-optimizer.

    TensorFlow's own passes run as they do by default, so that the memory that tf-amp
    needs is compared with what TensorFlow needs anyway.
    """
    seen: dict[str, Any] = {}
    if with_pass:
        plugin.load(functools.partial(_rewrite, seen), ("CPU",))
    meta_graph = _meta_graph(stem, copies)
    before = _status_bytes("VmRSS")
    _forget_peak()
    start = time.perf_counter()
    result = tf_optimizer.OptimizeGraph(_config(), meta_graph)
    seconds = time.perf_counter() - start
    if with_pass and "pass_seconds" not in seen:
        raise RuntimeError(f"The pass ended early, after {seen.get('stages')}.")
    return {
        "seconds": seconds,
        "peak_bytes": _status_bytes("VmHWM") - before,
        "low_nodes": count_ops(result.node).low,
        **seen,
    }


def _rewrite(
    seen: dict[str, Any], graph_def: bytes, item: plugin.GrapplerItem
) -> bytes | None:
    """Do what tf-amp does with a graph under its default settings, and time it."""
    stages: dict[str, float] = {}

    def observe(stage: str, draft: pipeline.Draft, seconds: float) -> None:
        stages[stage] = seconds

    seen |= {"graph_bytes": len(graph_def), "stages": stages}
    start, cpu_start = time.perf_counter(), time.thread_time()
    parsed = GraphDef.FromString(graph_def)
    rewrite = pipeline.optimize(
        parsed,
        Item(fetch=item.fetch, preserve=item.preserve),
        dataclasses.replace(
            settings_from_config(AmpConfig(), "CPU"), predicts_memory=False
        ),
        shapes=lambda: item.shapes([node.name for node in parsed.node]),
        observer=observe,
    )
    result = rewrite.graph_def.SerializeToString() if rewrite.changed else None
    seen["pass_seconds"] = time.perf_counter() - start
    seen["pass_cpu_seconds"] = time.thread_time() - cpu_start
    seen["nodes"] = len(parsed.node)
    return result


def _meta_graph(stem: Path, copies: int) -> MetaGraphDef:
    graph_def = GraphDef.FromString(stem.with_suffix(".pb").read_bytes())
    fetch = json.loads(stem.with_suffix(".json").read_text())["fetch"]
    meta_graph = MetaGraphDef(graph_def=replicated(graph_def, copies))
    meta_graph.collection_def["train_op"].node_list.value.extend(
        f"copy{number}/{name}" for number in range(copies) for name in fetch
    )
    return meta_graph


def _config() -> ConfigProto:
    config = ConfigProto()
    rewriting = config.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = RewriterConfig.ONE
    return config


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(each for each in lines if each.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


def _forget_peak() -> None:
    """Let the kernel measure the peak of the memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Do what the command line says and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("capture", "optimize"))
    parser.add_argument("stem", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--with-pass", action="store_true")
    options = parser.parse_args()
    if options.action == "capture":
        capture_training_step(options.stem)
        return
    print(
        json.dumps(optimize(options.stem, options.copies, with_pass=options.with_pass))
    )


if __name__ == "__main__":
    main()
