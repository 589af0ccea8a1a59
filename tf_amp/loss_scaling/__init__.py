"""Loss scales: what a loss is multiplied by, and how that number changes.

`protocol` says what a loss scale is, three modules hold those that ship, `words` names
them, `variables` keeps their state and `report` reads it. Where gradients are scaled
and steps are skipped is decided by `gradients` and `steps.optimizers`.
"""

from tf_amp.loss_scaling.constant import NoOpLossScale, StaticLossScale
from tf_amp.loss_scaling.dynamic import DynamicLossScale
from tf_amp.loss_scaling.protocol import LossScale, Seen
from tf_amp.loss_scaling.report import LossScaleState, loss_scale_state
from tf_amp.loss_scaling.statistical import StatisticalLossScale
from tf_amp.loss_scaling.words import loss_scale_from_words, words_from_loss_scale

__all__ = [
    "DynamicLossScale",
    "LossScale",
    "LossScaleState",
    "NoOpLossScale",
    "Seen",
    "StaticLossScale",
    "StatisticalLossScale",
    "loss_scale_from_words",
    "loss_scale_state",
    "words_from_loss_scale",
]
