"""Keras callbacks and distribution strategies for training in mixed precision.

    model.fit(..., callbacks=[keras_callbacks.AutoMixedPrecision()])

Names are loaded when first used, so that the import is quick and needs no TensorFlow.
They serve Keras 3 and tf_keras alike.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__: list[str] = []

_HOMES: dict[str, str] = {}


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
