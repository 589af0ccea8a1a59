"""What a program is told when gradients overflow that no optimizer has asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from absl import logging


def warn_of_overflow(scale: float) -> None:
    """Say once that gradients are not finite, unless an optimizer is in use.

    Args:
      scale: of the loss when they overflowed.
    """
    from tf_amp.training.optimizers.skipping import have_applied

    if have_applied():
        return
    logging.log_first_n(
        logging.WARNING,
        "Gradients overflowed at loss scale %g: some are infinite or NaN. Optimizers, "
        "and assignments to variables, skip such a step, and the next is scaled lower; "
        "tf_amp.loss_scale_state() counts them.",
        1,
        scale,
    )


def warn_if_eager(finite: Any, state: Mapping[str, Any]) -> None:
    """Do so under eager execution; functions and graphs hand overflows over."""
    if tf.executing_eagerly() and not bool(finite):
        warn_of_overflow(float(state["scale"]))
