"""Graphs whose products are in 16 bits before tf-amp sees them, and by whom."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from grappler_pass.graph.op_table import PRODUCT_OPS

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef

# What TensorFlow's pass puts into the names of its casts.
_OF_PASS = "-AutoMixedPrecision"


def low_dtype_of(graph_def: GraphDef) -> str:
    """Return the 16-bit type of most products of a graph; "" where that is none."""
    import tensorflow as tf

    types = Counter(
        tf.dtypes.as_dtype(node.attr["T"].type).name
        for node in graph_def.node
        if node.op in PRODUCT_OPS and node.attr["T"].type
    )
    ((name, _),) = types.most_common(1) or [("", 0)]
    return name if name in ("bfloat16", "float16") else ""


def cause_of(graph_def: GraphDef) -> str:
    """Say who has put the products of a graph in 16 bits, and what to take out."""
    if any(_OF_PASS in node.name for node in graph_def.node):
        return (
            "TensorFlow's own pass is on: take out auto_mixed_precision, or "
            "enable_mixed_precision_graph_rewrite"
        )
    mixed = (name for name in _global_policies() if name.startswith("mixed_"))
    policy = next(mixed, "")
    if policy:
        return (
            f"Keras' policy {policy} is on: take out the policy, the float32 of the "
            "last layer and the LossScaleOptimizer"
        )
    return "the program casts, or a policy of its layers: take that out"


def _global_policies() -> tuple[str, ...]:
    """Return the names of the policies that new layers of Keras and tf_keras get."""
    keras: Any = sys.modules.get("keras")
    tf_keras: Any = sys.modules.get("tf_keras")
    policies = []
    if hasattr(keras, "config"):
        policies.append(keras.config.dtype_policy())
    if hasattr(tf_keras, "mixed_precision"):
        policies.append(tf_keras.mixed_precision.global_policy())
    return tuple(str(policy.name) for policy in policies)
