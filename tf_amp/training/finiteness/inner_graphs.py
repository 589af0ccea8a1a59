"""Tensors of a graph as loops and branches within it see them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import frames


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


def flag_seen_from_here(flag: Any) -> Any:
    """Return a flag of an old branch as it can be used in the present part of a graph.

    It is True where the branch is not taken. None of what is in the frames of an old
    loop: each round has a flag of its own.
    """
    here = frames.frames_of(tf.compat.v1.get_default_graph())
    for frame in frames.frames_of(flag.op):
        if flag is None or frame in here:
            break
        flag = frames.true_unless_taken(flag, frame)
    return flag
