"""Keras callbacks and distribution strategies for training in mixed precision.

    model.fit(..., callbacks=[keras_callbacks.AutoMixedPrecision()])

Names are loaded when first used, so that the import is quick and needs no TensorFlow.
They serve Keras 3 and tf_keras alike.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_callbacks.mirrored import mirrored_strategy

__all__ = [
    "mirrored_strategy",
]

_HOMES = {
    "mirrored_strategy": "keras_callbacks.mirrored",
}


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return list(__all__)
