"""The private part of TensorFlow that orders what a function does to its variables.

As in `_tensorflow_private`: where a name is gone, one warning says what is lost.
"""

from __future__ import annotations

from typing import Any

from tf_amp._tensorflow_private import warn_once


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
