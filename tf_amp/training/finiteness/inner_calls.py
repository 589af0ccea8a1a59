"""Whether the gradients were finite that others are taken of.

An overflow of theirs explains one of the gradients made from them, and is not to be
counted twice. They were taken in the same graph, or in functions, branches and loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp.training.finiteness import votes
from tf_amp.training.loss_scale.scale_state import ScaleState
from tf_amp.training.optimizers import called_functions


def finite_flags(gradients: Sequence[Any], state: ScaleState) -> list[Any]:
    """Return for each call for inner gradients whether they were finite, bool scalars.

    Args:
      gradients: made here.
      state: that calls within functions have adjusted.
    """
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    if not votes.any_around(graph) and not called_functions.any_around(graph, state):
        return []
    found = votes.ancestry_of(gradients)
    of_calls = called_functions.finite_flags(found.calls, [state])
    flags = [vote.finite for vote in found.votes]
    return flags + [flag for flag in of_calls if flag is not None]
