"""TensorFlow's private names of what surrounds an operation in its graph.

Old branches and loops are parts of one graph; a function orders what is done in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import unless_gone, warn_once


@unless_gone(
    "_get_control_flow_context", "gradients taken in old branches stop training", ()
)
def frames_of(operation: Any) -> tuple[Any, ...]:
    """Return the branches and loops that hold an operation or graph, innermost first.

    Those that hold a graph are the ones that are being built.
    """
    frames, frame = [], operation._get_control_flow_context()
    while frame is not None:
        frames.append(frame)
        frame = frame.outer_context
    return tuple(f for f in frames if f.IsCondContext() or f.IsWhileContext())


def true_unless_taken(flag: Any, branch: Any) -> Any | None:
    """Return a flag of a branch as it is around it: True where it is not taken.

    None of what is in a loop.
    """
    if not branch.IsCondContext():
        return None
    with _around(branch, flag.graph):
        both = tf.raw_ops.Switch(data=tf.constant(True), pred=branch.pred)
        return tf.raw_ops.Merge(inputs=[flag, both[1 - branch.branch]]).output


@contextlib.contextmanager
def _around(frame: Any, graph: Any) -> Iterator[None]:
    with graph.as_default(), tf.control_dependencies(None):
        outer = frame.outer_context
        if outer is None:
            yield
            return
        outer.Enter()
        try:
            yield
        finally:
            outer.Exit()


def can_order_by_hand(operation: Any) -> bool:
    """Return whether others can be put before and after an operation."""
    graph = operation.graph
    if not graph.building_function:
        # Frames of old loops admit nothing from outside.
        frame = getattr(operation, "_get_control_flow_context", lambda: None)()
        return frame is None
    # What is wrapped in a function without any order has no manager.
    manager = getattr(graph, "experimental_acd_manager", graph)
    if manager is None or hasattr(manager, "run_independently"):
        return True
    warn_once(
        "experimental_acd_manager",
        "steps whose gradients overflow within a nested function may be taken",
    )
    return False


def order_by_hand(operation: Any) -> None:
    """Let an operation of a function wait for its own inputs alone."""
    manager = getattr(operation.graph, "experimental_acd_manager", None)
    if manager is not None:
        manager.run_independently(operation)
