"""What stands in the place of gradients that overflowed.

These are zeros, so that nobody receives NaN. But what is computed from them is wrong:
gradients of it are NaN, which tells the call that takes them, wherever that is. In
graphs, where votes tell the tapes, this is written into the branches' own gradient: it
takes no operation unless it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import tracing
from tf_amp.gradients.finiteness import must_select

_SLOPES = {
    "If": "TfAmpBranchOrNotANumber",
    "StatelessIf": "TfAmpBranchOrNotANumber",
    "SelectV2": "TfAmpSelectedOrNotANumber",
}


def zeros_unless(finite: Any, gradients: Sequence[Any]) -> list[Any]:
    """Return gradients, or zeros in their place.

    Args:
      finite: whether all are, bool scalar.
      gradients: floating or complex.
    """
    if tf.executing_eagerly():
        return [tf.identity(g) if bool(finite) else _zeros(g) for g in gradients]
    graph = tf.compat.v1.get_default_graph()
    with graph.gradient_override_map(_SLOPES):
        if must_select():
            return [tf.where(finite, g, tf.zeros_like(g)) for g in gradients]
        return list(
            tf.cond(
                finite,
                lambda: [tf.identity(g) for g in gradients],
                lambda: [tf.zeros_like(g) for g in gradients],
            )
        )


def _zeros(gradient: Any) -> Any:
    # The slope of what is selected is 0 * NaN.
    return tf.where(False, gradient * math.nan, tf.zeros_like(gradient))


@tf.RegisterGradient(_SLOPES["If"])  # type: ignore[untyped-decorator]
def _of_branches(operation: Any, *upstream: Any) -> list[Any]:
    """Return gradients of the branches' inputs, which the predicate comes before."""
    slopes = tracing.gradient_of_branches(operation, upstream)
    unit = tf.where(operation.inputs[0], 1.0, math.nan)
    return [None if s is None else s * tf.cast(unit, s.dtype) for s in slopes]


@tf.RegisterGradient(_SLOPES["SelectV2"])  # type: ignore[untyped-decorator]
def _of_selected(operation: Any, upstream: Any) -> list[Any]:
    not_a_number = tf.cast(math.nan, upstream.dtype)
    return [None, tf.where(operation.inputs[0], upstream, not_a_number), None]
