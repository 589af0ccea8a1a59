"""The weights that a checkpoint is restored to."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from grappler_pass.graph.walks import reached
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
        saved_with_them = reached(alive, _children_of, key=id)
        return weights_among(list(saved_with_them)) if alive else None


def weights_among(trackables: Iterable[Any]) -> Handles:
    """Return the trainable variables among some objects."""
    return handles_of(one for one in trackables if getattr(one, "trainable", False))


def _children_of(trackable: Any) -> Iterable[Any]:
    return tf.train.TrackableView.children(trackable).values()  # type: ignore[no-any-return]
