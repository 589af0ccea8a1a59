"""Tensors of a graph as loops and branches within it see them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def seen_from_here(tensor: Any) -> Any:
    """Return a tensor as it can be used in the present graph.

    None where it cannot: a function lies between, which may be called from elsewhere
    later.
    """
    if tf.executing_eagerly():
        return tensor
    if hasattr(tensor, "numpy"):
        return None
    graph, within = tf.compat.v1.get_default_graph(), []
    while graph is not tensor.graph:
        if not getattr(graph, "is_control_flow_graph", False):
            return None
        within.append(graph)
        graph = graph.outer_graph
    # The gradient of a branch is given tensors of the graph around it, of no other.
    for inner in reversed(within):
        with inner.as_default():
            tensor = tf.identity(tensor)
    return tensor
