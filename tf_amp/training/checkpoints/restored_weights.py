"""The weights that a checkpoint is restored to."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_amp.training.loss_scale.weights import Handles, handles_of


class RestoredWeights:
    """Finds the weights of what was restored, and keeps none of it alive.

    A model may make them long after it was restored.
    """

    def __init__(self, trackables: Iterable[Any]) -> None:
        """Remember what was restored."""
        self._references = [weakref.ref(one) for one in trackables]

    def __call__(self) -> Handles | None:
        """Return the weights that there are by now; None once all of it is gone."""
        found = [reference() for reference in self._references]
        alive = [one for one in found if one is not None]
        return weights_among(_reached_from(alive)) if alive else None


def weights_among(trackables: Iterable[Any]) -> Handles:
    """Return the trainable variables among some objects."""
    return handles_of(one for one in trackables if getattr(one, "trainable", False))


def _reached_from(roots: Sequence[Any]) -> list[Any]:
    """Return objects and all that would be saved with them."""
    found = {id(one): one for one in roots}
    waiting = collections.deque(roots)
    while waiting:
        for child in tf.train.TrackableView.children(waiting.popleft()).values():
            if id(child) not in found:
                found[id(child)] = child
                waiting.append(child)
    return list(found.values())
