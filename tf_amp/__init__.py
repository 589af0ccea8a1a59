"""Automatic mixed precision for TensorFlow and Keras programs as they are.

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python train.py

or, from Python, `tf_amp.enable()` before the first function is traced. Names are loaded
when first used, so that `import tf_amp` is quick and needs no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tf_amp.errors import (
    AmpError,
    CheckpointMismatch,
    ConfigError,
    RewriteFailed,
    ScopeError,
    TensorFlowMissing,
)

if TYPE_CHECKING:
    from grappler_pass.plan import Plan
    from tf_amp.auditing.audits import audit
    from tf_amp.checking.functions import ranges, verify
    from tf_amp.checking.ranges import Ranges
    from tf_amp.checking.verification import Verification
    from tf_amp.configuration.config import AmpConfig
    from tf_amp.converting.conversion import convert
    from tf_amp.converting.report import ConversionReport
    from tf_amp.explaining.explanation import explain
    from tf_amp.explaining.prediction import Prediction
    from tf_amp.gradients.true_units import in_true_units
    from tf_amp.loss_scaling.constant import NoOpLossScale, StaticLossScale
    from tf_amp.loss_scaling.dynamic import DynamicLossScale
    from tf_amp.loss_scaling.protocol import LossScale
    from tf_amp.loss_scaling.report import LossScaleState, loss_scale_state
    from tf_amp.loss_scaling.statistical import StatisticalLossScale
    from tf_amp.optimizing import optimize
    from tf_amp.porting import init_trainer, initialize, scale_loss
    from tf_amp.runtime import disable, enable, init, is_enabled, plans
    from tf_amp.scopes.scope import float32_scope, mixed_precision_scope

__version__ = "0.1.0"

__all__ = [
    "AmpConfig",
    "AmpError",
    "CheckpointMismatch",
    "ConfigError",
    "ConversionReport",
    "DynamicLossScale",
    "LossScale",
    "LossScaleState",
    "NoOpLossScale",
    "Plan",
    "Prediction",
    "Ranges",
    "RewriteFailed",
    "ScopeError",
    "StaticLossScale",
    "StatisticalLossScale",
    "TensorFlowMissing",
    "Verification",
    "audit",
    "convert",
    "disable",
    "enable",
    "explain",
    "float32_scope",
    "in_true_units",
    "init",
    "init_trainer",
    "initialize",
    "is_enabled",
    "loss_scale_state",
    "mixed_precision_scope",
    "optimize",
    "plans",
    "ranges",
    "scale_loss",
    "verify",
]

_HOMES = {
    "AmpConfig": "tf_amp.configuration.config",
    "ConversionReport": "tf_amp.converting.report",
    "DynamicLossScale": "tf_amp.loss_scaling.dynamic",
    "LossScale": "tf_amp.loss_scaling.protocol",
    "LossScaleState": "tf_amp.loss_scaling.report",
    "NoOpLossScale": "tf_amp.loss_scaling.constant",
    "Plan": "grappler_pass.plan",
    "Prediction": "tf_amp.explaining.prediction",
    "Ranges": "tf_amp.checking.ranges",
    "StaticLossScale": "tf_amp.loss_scaling.constant",
    "StatisticalLossScale": "tf_amp.loss_scaling.statistical",
    "Verification": "tf_amp.checking.verification",
    "audit": "tf_amp.auditing.audits",
    "convert": "tf_amp.converting.conversion",
    "disable": "tf_amp.runtime",
    "enable": "tf_amp.runtime",
    "explain": "tf_amp.explaining.explanation",
    "float32_scope": "tf_amp.scopes.scope",
    "in_true_units": "tf_amp.gradients.true_units",
    "init": "tf_amp.runtime",
    "init_trainer": "tf_amp.porting",
    "initialize": "tf_amp.porting",
    "is_enabled": "tf_amp.runtime",
    "loss_scale_state": "tf_amp.loss_scaling.report",
    "mixed_precision_scope": "tf_amp.scopes.scope",
    "optimize": "tf_amp.optimizing",
    "plans": "tf_amp.runtime",
    "ranges": "tf_amp.checking.functions",
    "scale_loss": "tf_amp.porting",
    "verify": "tf_amp.checking.functions",
}

# Modules that are there without being imported by name.
_MODULES = ("placement",)


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in.

    Raises:
      TensorFlowMissing: it needs TensorFlow, which cannot be imported.
    """
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "tensorflow":
            importlib.import_module("tf_amp.tensorflow_version").check_tensorflow()
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__, "__version__"]
