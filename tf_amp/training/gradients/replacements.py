"""New values of variables that come in the place of gradients.

Keras' float8 layers hand on as the gradient of a scale, or of a history of maxima, what
an optimizer is to write into it. These are not multiplied by the loss scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_amp.training.finiteness import votes


def finished_but_for_them(
    finish: Callable[[Any], Any], gradients: Any, sources: Any
) -> Any:
    """Return gradients in true units, and what is none as it is.

    Args:
      finish: returns a structure of gradients in true units, which carry a vote.
      gradients: of the sources, in their structure.
      sources: tensors and variables.
    """
    variables, flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
    are_new = [getattr(v, "overwrite_with_gradient", False) for v in variables]
    if not any(are_new):
        return finish(gradients)
    scaled = [None if new else g for new, g in zip(are_new, flat, strict=True)]
    finished = finish(scaled)
    results = tf.nest.flatten(finished, expand_composites=True)
    for new, value in zip(are_new, flat, strict=True):
        if new and value is not None:
            votes.share_vote(results, value)
    whole = [
        value if new else g
        for new, value, g in zip(are_new, flat, finished, strict=True)
    ]
    return tf.nest.pack_sequence_as(gradients, whole)
