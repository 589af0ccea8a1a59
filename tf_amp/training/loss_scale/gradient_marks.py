"""Marks on what begins and ends scaled gradients, for the rewriting of their graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from grappler_pass.annotations import AGAIN, BARRIER, LOSS_SCALE, SCALE, SCALE_UPDATE
from grappler_pass.rewriting.second_try import Counters
from tf_amp._tensorflow_private.tracing import attribute_of, put_attribute


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


def mark_scale(scale: Any, is_unscaled_here: bool) -> None:
    """Mark a scale by whether what it multiplies is divided again in the same graph.

    Once it has not been, it never is.

    Args:
      scale: scalar, unpacked from a state that was read, or that divided by a number.
      is_unscaled_here: whether it is as far as the present call goes.
    """
    if hasattr(scale, "numpy") or scale.op.type not in ("RealDiv", "Unpack"):
        return
    if attribute_of(scale.op, SCALE, 0) >= 0:
        put_attribute(scale.op, SCALE, i=scale.value_index if is_unscaled_here else -1)


def mark_second_try(scale: Any, counters: Sequence[str]) -> None:
    """Let gradients of a scaled loss be taken again without the scale, in this graph.

    Args:
      scale: scalar.
      counters: the names of what the state counts, in the order of its vector.
    """
    places = map(counters.index, ("finite", "skipped_steps"))
    mark = Counters(len(counters), *places).mark(scale.value_index)
    put_attribute(scale.op, AGAIN, s=mark.encode())


def scale_update_scope() -> Any:
    """Name what is made within as what a loss scale is adjusted by."""
    return tf.name_scope(SCALE_UPDATE)


def _mark(tensor: Any, name: str) -> None:
    if isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy"):
        put_attribute(tensor.op, name, b=True)
