"""Keras callbacks and distribution strategies for training in mixed precision.

    model.fit(..., callbacks=[keras_callbacks.AutoMixedPrecision()])

Names are loaded when first used, so that the import is quick and needs no TensorFlow.
They serve Keras 3 and tf_keras alike.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras_callbacks.auto_mixed_precision import AutoMixedPrecision
    from keras_callbacks.gradient_health_monitor import GradientHealthMonitor
    from keras_callbacks.loss_scale_monitor import LossScaleMonitor
    from keras_callbacks.mirrored import mirrored_strategy
    from keras_callbacks.precision_report import PrecisionReport
    from keras_callbacks.step_time_monitor import StepTimeMonitor

__all__ = [
    "AutoMixedPrecision",
    "GradientHealthMonitor",
    "LossScaleMonitor",
    "PrecisionReport",
    "StepTimeMonitor",
    "mirrored_strategy",
]

_HOMES = {
    "AutoMixedPrecision": "keras_callbacks.auto_mixed_precision",
    "GradientHealthMonitor": "keras_callbacks.gradient_health_monitor",
    "LossScaleMonitor": "keras_callbacks.loss_scale_monitor",
    "PrecisionReport": "keras_callbacks.precision_report",
    "StepTimeMonitor": "keras_callbacks.step_time_monitor",
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
