"""Marks on what begins and ends scaled gradients, for the rewriting of their graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from grappler_pass.eligibility.state_updates import BARRIER, LOSS_SCALE


def mark_reading(value: Any) -> Any:
    """Return a state that was read, which stays float32 as far as the first products.

    Args:
      value: vector, as a variable's `read_value` returns it.
    """
    _mark(value, LOSS_SCALE)
    # The read itself remains where the optimizer of graphs removes what passes it on.
    for source in () if hasattr(value, "numpy") else value.op.inputs:
        if source.op.type == "ReadVariableOp":
            _mark(source, LOSS_SCALE)
    return value


def mark_unscaled(gradient: Any) -> None:
    """Let nothing that follows from a gradient in true units go to low precision."""
    _mark(gradient, BARRIER)


def _mark(tensor: Any, name: str) -> None:
    from tensorflow.core.framework.attr_value_pb2 import AttrValue

    if isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy"):
        tensor.op._set_attr(name, AttrValue(b=True))
