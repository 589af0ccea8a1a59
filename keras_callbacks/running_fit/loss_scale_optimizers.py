"""Keras' own loss scale optimizers: which they are, and what they tell.

That of Keras 3 has its variables once it is built, and takes the scale off gradients
when it applies them. That of tf_keras is given gradients in true units, and counts
skipped steps as if they had been taken.
"""

from __future__ import annotations

import math
from typing import Any


def scales_losses(optimizer: Any) -> bool:
    """Return whether an optimizer is one of Keras' loss scale optimizers."""
    names = (kind.__name__ for kind in type(optimizer).__mro__)
    return any("LossScaleOptimizer" in name for name in names)


def scale_of(optimizer: Any) -> Any:
    """Return what losses are multiplied by: a tensor, a variable or a number."""
    if _is_of_tf_keras(optimizer):
        return optimizer.loss_scale
    return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale


def scale_left_on_gradients(optimizer: Any) -> Any:
    """Return what gradients are still multiplied by when they are to be applied."""
    return 1.0 if _is_of_tf_keras(optimizer) else scale_of(optimizer)


def good_steps(optimizer: Any) -> Any:
    """Return the finite steps since an overflow or a change of scale, as `scale_of`."""
    is_of_tf_keras = _is_of_tf_keras(optimizer)
    name = "dynamic_counter" if is_of_tf_keras else "step_counter"
    counter = getattr(optimizer, name, None)
    return 0 if counter is None else counter


def applied_steps(optimizer: Any) -> Any:
    """Return the steps taken, as `scale_of`: not those skipped; NaN if not known."""
    if _is_of_tf_keras(optimizer):
        return math.nan
    return optimizer.inner_optimizer.iterations


def _is_of_tf_keras(optimizer: Any) -> bool:
    return hasattr(optimizer, "get_unscaled_gradients")
