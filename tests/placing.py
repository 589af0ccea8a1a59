"""Where the ops of a test's graph run: on a GPU where there is one, else on the CPU.

TensorFlow places a graph before Grappler optimizes it. What Grappler fuses, and in
which layout it computes, hangs on the device of each node, so that a graph that was
captured for another device than it runs on may hold kernels that are not there.
"""

from __future__ import annotations

import functools
import itertools

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.kernel_def_pb2 import KernelDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import kernels

GPUS = tf.config.list_physical_devices("GPU")
KIND = "GPU" if GPUS else "CPU"


def placed(graph_def: GraphDef, kind: str) -> GraphDef:
    """Return a copy placed as TensorFlow does on a machine with a kind of devices.

    A node without a kernel on such a device goes to the CPU. Those of functions are
    placed, too.
    """
    copy = GraphDef()
    copy.CopyFrom(graph_def)
    bodies = (function.node_def for function in copy.library.function)
    for node in itertools.chain(copy.node, *bodies):
        chosen = kind if has_kernel(node, kind) else "CPU"
        node.device = f"/device:{chosen}:0"
    return copy


def has_kernel(node: NodeDef, kind: str) -> bool:
    """Return whether a kind of devices has a kernel for the types of a node."""
    return any(
        kernel.device_type in (kind, "DEFAULT") and _suits(kernel, node)
        for kernel in _kernels_of(node.op)
    )


def _suits(kernel: KernelDef, node: NodeDef) -> bool:
    """Return whether the types that a kernel is for are those of a node."""
    for constraint in kernel.constraint:
        given = node.attr[constraint.name] if constraint.name in node.attr else None
        if given is None:
            continue
        types = given.list.type if given.HasField("list") else [given.type]
        if not set(types) <= set(constraint.allowed_values.list.type):
            return False
    return True


@functools.cache
def _kernels_of(op: str) -> tuple[KernelDef, ...]:
    found = kernels.get_registered_kernels_for_op(op).kernel
    # A labelled kernel is for those who ask for it.
    return tuple(kernel for kernel in found if not kernel.label)
