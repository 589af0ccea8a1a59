"""What a call for gradients hands on: its gradients as they are, finite or not.

What is computed from an overflow may be finite and wrong, once it is clipped: gradients
of it are NaN, which shows the call that takes them, wherever that is. In graphs, where
votes show the tapes, this is written into the results' own gradient: it takes no
operation unless it is asked for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_amp._tensorflow_private import training as private
from tf_amp.training.finiteness.votes import Vote, cast_vote, vote_on

_SLOPE = "TfAmpResultOrNotANumber"


def handed_on(vote: Vote, gradients: Sequence[Any]) -> list[Any]:
    """Return gradients that carry a vote, which they wait for.

    Args:
      vote: on all of them.
      gradients: floating or complex.
    """
    if tf.executing_eagerly():
        finite = bool(vote.finite)
        # The slope of what is not selected is 0 * NaN.
        results = [
            tf.identity(g) if finite else tf.where(False, g * math.nan, g)
            for g in gradients
        ]
        cast_vote(results, vote)
        return results
    graph, slope = tf.compat.v1.get_default_graph(), functools.partial(_slope, vote)
    override = graph.gradient_override_map({"Identity": _SLOPE})
    with override, tf.control_dependencies([vote.finite]):
        results = [private.with_slope(tf.identity, g, slope) for g in gradients]
    # Gradients of the results need not be made of them, but always of this.
    cast_vote([vote.finite, *results], vote)
    return results


@tf.RegisterGradient(_SLOPE)  # type: ignore[untyped-decorator]
def _of_result(operation: Any, upstream: Any) -> Any:
    # TensorFlow asks what the slope is without any operation where it stores graphs.
    vote = vote_on(operation.outputs[0]) if operation is not None else None
    return upstream if vote is None else _slope(vote, upstream)


def _slope(vote: Vote, upstream: Any) -> Any:
    return upstream * tf.cast(tf.where(vote.finite, 1.0, math.nan), upstream.dtype)
