"""Whether a model computes in 16 bits by itself already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tf_amp.config.amp_config import LOW_DTYPES


def obstacle_of(model: Any) -> str:
    """Say why a model cannot be converted for one `fit`; nothing where it can."""
    import tensorflow as tf

    if not hasattr(model, "distribute_strategy"):
        return "the model is not trained by TensorFlow"
    if not tf.executing_eagerly():
        return (
            "this is graph mode, where `with tf_amp.mixed_precision_scope():` goes "
            "around building the model"
        )
    policy = mixed_policy_of(model)
    return f"the model has Keras' policy {policy}" if policy else ""


def mixed_policy_of(model: Any) -> str:
    """Name the policy under which a layer of a model computes in 16 bits, if any.

    Args:
      model: of Keras 3 or tf_keras.
    """
    for layer in _layers(model):
        if getattr(layer, "compute_dtype", None) in LOW_DTYPES:
            policy = getattr(layer, "dtype_policy", None)
            return str(getattr(policy, "name", layer.compute_dtype))
    return ""


def _layers(model: Any) -> Iterator[Any]:
    """Yield a model and its layers, those of models within it among them."""
    yield model
    for layer in getattr(model, "layers", ()):
        yield from _layers(layer)
