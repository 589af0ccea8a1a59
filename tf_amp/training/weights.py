"""Which weights a training is about: by them loss scales and checkpoints find together.

A variable is known by its handle, of several replicas by those of all of them, whether
TensorFlow or Keras made the object around it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from grappler_pass.graph.walks import reached
from tf_amp._tensorflow_private import tracing

# By identity. Whoever keeps them keeps them weakly, so that no number is given twice.
Handles = Mapping[int, Any]


def handles_of(values: Iterable[Any]) -> Handles:
    """Return the handles of the variables among some values; others have none."""
    parts = (part for value in values for part in _parts_of(value))
    handles = (getattr(part, "handle", None) for part in parts)
    return {id(handle): handle for handle in handles if handle is not None}


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
        children_of = tf.train.TrackableView.children
        saved_with_them = reached(alive, lambda one: children_of(one).values(), key=id)
        return weights_among(list(saved_with_them)) if alive else None


def weights_among(trackables: Iterable[Any]) -> Handles:
    """Return the trainable variables among some objects."""
    return handles_of(one for one in trackables if getattr(one, "trainable", False))


def shape_of(handle: Any) -> tuple[int, ...] | None:
    """Return the shape of the variable behind a handle or reference, if known."""
    shape = handle.shape
    if handle.dtype == tf.resource:
        contents = tracing.handle_contents(handle)
        shape = tf.TensorShape(contents[0].shape if contents else None)
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def _parts_of(value: Any) -> tuple[Any, ...]:
    # Keras 3 wraps a variable of TensorFlow's, whose own `value` is a method.
    inner = getattr(value, "value", None)
    variable = value if inner is None or callable(inner) else inner
    if isinstance(variable, tf.distribute.DistributedValues):
        return tuple(variable.values)
    return (variable,)
