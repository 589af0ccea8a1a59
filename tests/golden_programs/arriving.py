"""The graphs of programs as the pass meets them, the same on every kind of CPU.

Grappler's optimizers run before the pass. All that they do is alike everywhere, but for
what is fused on a CPU: more with oneDNN than without. Where that makes a difference the
graph is stored.
"""

from __future__ import annotations

import functools
import gzip
import pathlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import keras
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.meta_graph_pb2 import MetaGraphDef

from benchmarks.training_graphs.words import Step
from grappler_pass.graph import type_slots
from grappler_pass.graph.shapes import Shapes, shapes_from_graph_def
from grappler_pass.graph.view import Item
from tests.golden_programs.catalog import BY_NAME, Program
from tf_amp._tensorflow_private import graphs as private
from tf_amp._tensorflow_private import is_onednn_enabled
from tf_amp.tracing import grappler_preview

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "graphs"
# What the plans are made with.
TENSORFLOW, KERAS = "2.21", "3.15"
_ARCHITECTURE = "9.0"


class Arriving(NamedTuple):
    """A graph, what it is run for, and the shapes of its tensors."""

    graph_def: GraphDef
    item: Item
    shapes: Shapes


def why_not_here(name: str, kind: str) -> str:
    """Return why other plans of a program are made here; "" where none are."""
    version = tf.version.VERSION
    if not version.startswith(f"{TENSORFLOW}."):
        return f"golden plans are made with TensorFlow {TENSORFLOW}, this is {version}"
    if type_slots.has_kernels_for("GPU"):
        return "golden plans are made by a TensorFlow without kernels for GPUs"
    program, keras_version = BY_NAME[name], keras.__version__
    is_traced = program.keras and not program.is_stored_for(kind)
    if is_traced and not keras_version.startswith(f"{KERAS}."):
        return f"{name} is traced with Keras {KERAS}, this is {keras_version}"
    return ""


@functools.cache
def arriving(name: str, kind: str) -> Arriving:
    """Return the graph of a program for a kind of device, "cpu" or "gpu"."""
    program = BY_NAME[name]
    is_stored = program.is_stored_for(kind)
    graph_def, fetch = _stored(name) if is_stored else _made(program, kind)
    return Arriving(
        graph_def, Item(fetch=fetch, preserve=fetch), shapes_from_graph_def(graph_def)
    )


@functools.cache
def _built(program: Program) -> Step:
    # Keras numbers layers of the same name.
    keras.utils.clear_session(free_memory=False)
    return program.build()


def _made(program: Program, kind: str) -> tuple[GraphDef, tuple[str, ...]]:
    step = _built(program)
    if program.compiled:
        graph_def = grappler_preview.inlined_graph(step.graph_def, step.fetches)
    else:
        graph_def = grappler_graph(step, kind)
    return graph_def, step.fetches


def grappler_graph(step: Step, kind: str) -> GraphDef:
    """Return what Grappler makes of a graph whose nodes are on one kind of device."""
    placed = grappler_preview.on_device(step.graph_def, kind.upper())
    request, _ = grappler_preview.request_for(placed, step.fetches)
    cluster = private.cluster_of(_ARCHITECTURE if kind == "gpu" else None)
    optimized = grappler_preview.run_grappler(request, _options(), cluster)
    assert optimized is not None, "Grappler fails"
    return grappler_preview.without_devices(optimized)


def _options() -> ConfigProto:
    """Return what Grappler does by itself, whatever this process has set."""
    options = ConfigProto()
    rewrites = options.graph_options.rewrite_options
    rewrites.min_graph_nodes = -1
    # The pass comes at the end of the first of two iterations.
    rewrites.meta_optimizer_iterations = rewrites.ONE
    # It would warn of every absent kernel, and prices do not depend on layouts.
    rewrites.layout_optimizer = rewrites.OFF
    return options


def _stored(name: str) -> tuple[GraphDef, tuple[str, ...]]:
    content = gzip.decompress(stored_path(name).read_bytes())
    meta_graph = MetaGraphDef.FromString(content)
    fetches = meta_graph.collection_def["train_op"].node_list.value
    return meta_graph.graph_def, tuple(fetches)


def stored_path(name: str) -> pathlib.Path:
    """Return where the graph of a program is stored."""
    return FOLDER / f"{name}.pb.gz"


def store(names: Iterable[str]) -> None:
    """Write graphs of programs for CPUs, those that are stored, as they are made here.

    Raises:
      ValueError: oneDNN is off here, so that less is fused.
    """
    if not is_onednn_enabled():
        raise ValueError("oneDNN is off here; graphs are stored as they are with it")
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        if BY_NAME[name].stored:
            content = _stored_content(_built(BY_NAME[name]))
            stored_path(name).write_bytes(gzip.compress(content, mtime=0))


def outdated(names: Iterable[str]) -> Iterator[str]:
    """Yield programs whose stored graph is not what is made of them here and now.

    Without oneDNN less is fused, which says nothing.
    """
    for name in names if is_onednn_enabled() else ():
        if BY_NAME[name].stored:
            made = grappler_graph(_built(BY_NAME[name]), "cpu")
            if _lines(made) != _lines(_stored(name)[0]):
                yield name


def _lines(graph_def: GraphDef) -> list[str]:
    """Return what a graph computes, whatever the order and numbers of its parts."""
    return sorted(f"{n.name} {n.op} {' '.join(n.input)}" for n in graph_def.node)


def _stored_content(step: Step) -> bytes:
    graph_def = grappler_graph(step, "cpu")
    meta_graph, _ = grappler_preview.request_for(graph_def, step.fetches)
    content: bytes = meta_graph.SerializeToString(deterministic=True)
    return content
