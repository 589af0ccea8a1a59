"""Whether a model computes in 16 bits by itself already."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_LOW_DTYPES = ("float16", "bfloat16")


def mixed_policy_of(model: Any) -> str:
    """Name the policy under which a layer of a model computes in 16 bits, if any.

    Args:
      model: of Keras 3 or tf_keras.
    """
    for layer in _layers(model):
        if getattr(layer, "compute_dtype", None) in _LOW_DTYPES:
            policy = getattr(layer, "dtype_policy", None)
            return str(getattr(policy, "name", layer.compute_dtype))
    return ""


def scales_losses(optimizer: Any) -> bool:
    """Tell whether an optimizer is one of Keras' loss scale optimizers."""
    names = (kind.__name__ for kind in type(optimizer).__mro__)
    return any("LossScaleOptimizer" in name for name in names)


def _layers(model: Any) -> Iterator[Any]:
    """Yield a model and its layers, those of models within it among them."""
    yield model
    for layer in getattr(model, "layers", ()):
        yield from _layers(layer)
