"""Automatic mixed precision for TensorFlow and Keras programs as they are.

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python train.py

or, from Python, `tf_amp.enable()` before the first function is traced. Names are loaded
when first used, so that `import tf_amp` is quick and needs no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_amp.errors import (
    AlreadyMixedError,
    AmpError,
    CheckpointMismatchError,
    ConfigError,
    ConversionError,
    MissingExtraError,
    NotMeasurableError,
    RewriteError,
    ScopeError,
    ScriptMissingError,
    ShimError,
    StageError,
    TensorFlowMissingError,
    UnfitDataError,
    UnreadableModelError,
)
from tf_amp.lazy_names import lazy_names

if TYPE_CHECKING:
    from grappler_pass.planning.plan import Plan
    from tf_amp import block_sparse as block_sparse
    from tf_amp import placement as placement
    from tf_amp.config.amp_config import AmpConfig
    from tf_amp.config.loss_scales.adaptive import (
        DynamicLossScale,
        StatisticalLossScale,
    )
    from tf_amp.config.loss_scales.protocol import (
        LossScale,
        NoOpLossScale,
        StaticLossScale,
    )
    from tf_amp.config.ranges import Ranges
    from tf_amp.runtime.apex import init_trainer, initialize, scale_loss
    from tf_amp.runtime.enabling import disable, enable, init, is_enabled, plans
    from tf_amp.runtime.scope import autocast, float32_scope, mixed_precision_scope
    from tf_amp.tools.audit import audit
    from tf_amp.tools.convert.conversion import convert
    from tf_amp.tools.convert.job import ConversionReport
    from tf_amp.tools.explanation import explain
    from tf_amp.tools.optimize import optimize
    from tf_amp.tools.prediction import Prediction
    from tf_amp.tools.ranges import ranges
    from tf_amp.tools.verify.verification import Verification
    from tf_amp.tools.verify.verifying import verify
    from tf_amp.training.program_scaling import in_true_units
    from tf_amp.training.report import LossScaleState, loss_scale_state, set_loss_scale

__version__ = "0.1.0"

__all__ = [
    "AlreadyMixedError",
    "AmpConfig",
    "AmpError",
    "CheckpointMismatchError",
    "ConfigError",
    "ConversionError",
    "ConversionReport",
    "DynamicLossScale",
    "LossScale",
    "LossScaleState",
    "MissingExtraError",
    "NoOpLossScale",
    "NotMeasurableError",
    "Plan",
    "Prediction",
    "Ranges",
    "RewriteError",
    "ScopeError",
    "ScriptMissingError",
    "ShimError",
    "StageError",
    "StaticLossScale",
    "StatisticalLossScale",
    "TensorFlowMissingError",
    "UnfitDataError",
    "UnreadableModelError",
    "Verification",
    "audit",
    "autocast",
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
    "set_loss_scale",
    "verify",
]

# Modules, and the public names in them.
_HOMES = {
    "grappler_pass.planning.plan": "Plan",
    "tf_amp.config.amp_config": "AmpConfig",
    "tf_amp.config.loss_scales.adaptive": "DynamicLossScale StatisticalLossScale",
    "tf_amp.config.loss_scales.protocol": "LossScale NoOpLossScale StaticLossScale",
    "tf_amp.config.ranges": "Ranges",
    "tf_amp.runtime.apex": "init_trainer initialize scale_loss",
    "tf_amp.runtime.enabling": "disable enable init is_enabled plans",
    "tf_amp.runtime.scope": "autocast float32_scope mixed_precision_scope",
    "tf_amp.tools.audit": "audit",
    "tf_amp.tools.convert.conversion": "convert",
    "tf_amp.tools.convert.job": "ConversionReport",
    "tf_amp.tools.explanation": "explain",
    "tf_amp.tools.prediction": "Prediction",
    "tf_amp.tools.optimize": "optimize",
    "tf_amp.tools.ranges": "ranges",
    "tf_amp.tools.verify.verifying": "verify",
    "tf_amp.tools.verify.verification": "Verification",
    "tf_amp.training.program_scaling": "in_true_units",
    "tf_amp.training.report": "LossScaleState loss_scale_state set_loss_scale",
}

# So that type checkers refuse a name that is not there.
if not TYPE_CHECKING:
    __getattr__, _names = lazy_names(
        __name__,
        {name: home for home, names in _HOMES.items() for name in names.split()},
        modules=("block_sparse", "placement"),
    )

    def __dir__() -> list[str]:
        """List the public names, loaded or not."""
        return [*_names(), "__version__"]
