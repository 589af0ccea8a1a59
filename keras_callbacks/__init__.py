"""Keras callbacks and distribution strategies for training in mixed precision.

    model.fit(..., callbacks=[keras_callbacks.AutoMixedPrecision()])

Names are loaded when first used, so that the import is quick and needs no TensorFlow.
They serve Keras 3 and tf_keras alike. What is imported at once are the hooks by which
they know the method of a model that calls them: Python looks up `model.fit` before it
makes a callback for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_amp.lazy_names import lazy_names
from tf_amp.runtime import model_scopes

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

# So that type checkers refuse a name that is not there.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AutoMixedPrecision": ".auto_mixed_precision",
            "GradientHealthMonitor": ".gradient_health_monitor",
            "LossScaleMonitor": ".loss_scale_monitor",
            "PrecisionReport": ".precision_report",
            "StepTimeMonitor": ".step_time_monitor",
            "mirrored_strategy": ".mirrored",
        },
    )

model_scopes.install()
