"""A GPU that is not here: what TensorFlow's Grappler and this package make for it.

TensorFlow's own passes see a cluster with such a GPU and nodes that are placed on it,
and load no kernel. Nothing can be executed there; what CPUs can execute as well is
moved to one by `on_cpu`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from grappler_pass.graph import type_slots
from tf_amp._tensorflow_private import graphs as private
from tf_amp.config import devices
from tf_amp.rewriting import graph_settings
from tf_amp.tracing import grappler_preview, stack

LOW = {"bfloat16": tf.bfloat16.as_datatype_enum, "float16": tf.half.as_datatype_enum}


class Gpu(NamedTuple):
    """A kind of GPU, as TensorFlow describes it."""

    model: str
    capability: tuple[int, int]

    @property
    def architecture(self) -> str:
        """Its compute capability as clusters have it."""
        return "{}.{}".format(*self.capability)


P100 = Gpu("Tesla P100-PCIE-16GB", (6, 0))
V100 = Gpu("Tesla V100-SXM2-16GB", (7, 0))
T4 = Gpu("Tesla T4", (7, 5))
A100 = Gpu("NVIDIA A100-SXM4-40GB", (8, 0))
H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0))


@contextlib.contextmanager
def pretended(gpu: Gpu, *, tf32: bool = True) -> Iterator[None]:
    """Have this package find a GPU inside, with a kernel for all that ops' types admit.

    Args:
      gpu: to be found beside the CPU.
      tf32: whether products in float32 may be rounded, by which TensorFlow chooses
        layouts.
    """
    cpu, *_ = devices.present_devices()
    found = cpu, devices.Device("GPU", "/physical_device:GPU:0", *gpu)
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    with (
        mock.patch.object(devices, "present_devices", lambda: found),
        mock.patch.object(type_slots, "ABSENT_GPU", "GPU"),
    ):
        _look_up_again()
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(before)
    _look_up_again()


def _look_up_again() -> None:
    type_slots.kernel_exists.cache_clear()
    graph_settings.made_settings.cache_clear()


@dataclasses.dataclass(frozen=True)
class Traced:
    """A function's graph on a GPU.

    Attributes:
      graph_def: the graph.
      kept: names of its results and effects.
      gpu: that it is on, and that `pretended` has been told of.
    """

    graph_def: GraphDef
    kept: tuple[str, ...]
    gpu: Gpu

    @classmethod
    def from_function(
        cls, function: Callable[..., Any], specs: Sequence[tf.TensorSpec], gpu: Gpu
    ) -> Traced:
        """Trace a function that takes tensors."""
        graph = tf.function(function).get_concrete_function(*specs).graph
        graph_def = grappler_preview.graph_with_variables(graph)
        kept = grappler_preview.kept_nodes(graph)
        return cls(grappler_preview.on_device(graph_def, "GPU"), kept, gpu)

    def optimized(
        self, *, iterations: int = 2, with_pass: bool = True, layouts: bool = True
    ) -> Traced:
        """Return what Grappler makes of it.

        Args:
          iterations: 1, or 2 as TensorFlow does.
          with_pass: whether this package takes part.
          layouts: whether TensorFlow chooses layouts, as it does in the first.
        """
        request, options = grappler_preview.request_for(self.graph_def, self.kept)
        rewrites = options.graph_options.rewrite_options
        rewrites.meta_optimizer_iterations = iterations
        rewrites.layout_optimizer = rewrites.ON if layouts else rewrites.OFF
        grappler, alone = private.grappler(), stack.leaving_graphs_alone()
        assert grappler is not None
        with contextlib.nullcontext() if with_pass else alone:
            cluster = private.cluster_of(self.gpu.architecture)
            found = grappler.OptimizeGraph(options, request, False, cluster=cluster)
        return dataclasses.replace(self, graph_def=found)

    @property
    def low_nodes(self) -> list[NodeDef]:
        """Its nodes that compute in 16 bits."""
        return [n for n in self.graph_def.node if type_of(n) in LOW.values()]

    def count(self, op: str) -> int:
        """Return how many nodes there are of an op."""
        return sum(node.op == op for node in self.graph_def.node)


def type_of(node: NodeDef) -> int:
    """Return the DataType in a node's `T`; 0 if it has none."""
    return int(node.attr["T"].type) if "T" in node.attr else 0


def layout_of(node: NodeDef) -> str:
    """Return the layout that a node says its operands have; "" if it says none."""
    return node.attr["data_format"].s.decode() if "data_format" in node.attr else ""


def fused_in(node: NodeDef) -> tuple[str, ...]:
    """Return what TensorFlow has fused behind a node."""
    if "activation_mode" in node.attr:
        return (node.attr["activation_mode"].s.decode(),)
    fused = node.attr["fused_ops"].list.s if "fused_ops" in node.attr else ()
    return tuple(map(bytes.decode, fused))


def results_on_cpu(
    traced: Traced, values: Sequence[np.ndarray], names: Sequence[str]
) -> list[np.ndarray]:
    """Execute a graph on the CPU as it is, and return its results.

    Args:
      traced: the graph.
      values: of its placeholders.
      names: of these.
    """
    config = tf.compat.v1.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph:
        on_cpu = grappler_preview.on_device(traced.graph_def, "CPU")
        tf.import_graph_def(on_cpu, name="")
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            feeds = {f"{name}:0": v for name, v in zip(names, values, strict=True)}
            return session.run([f"{name}:0" for name in traced.kept], feeds)
