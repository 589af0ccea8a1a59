"""What a loss scale has come to, for people and callbacks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from grappler_pass.notebook_display import NotebookDisplay
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from rich.table import Table

    from tf_amp.training.overflow.messages import OverflowOrigin


@dataclasses.dataclass(frozen=True, repr=False)
class LossScaleState(NotebookDisplay):
    """A loss scale after the steps so far.

    Attributes:
      scale: what losses are multiplied by; 1 without scaling.
      good_steps: steps with finite gradients since an overflow or a change of scale.
      skipped_steps: steps whose gradients overflowed.
      overflow_origin: what produced the first value that was not finite, when a step
        last overflowed; None where none did, or where that is not known.
    """

    scale: float = 1.0
    good_steps: int = 0
    skipped_steps: int = 0
    overflow_origin: OverflowOrigin | None = None

    def summary(self) -> str:
        """Return one line: the scale, and the steps done and skipped with it."""
        origin = f"; overflow in {self.overflow_origin}" if self.overflow_origin else ""
        return (
            f"loss scale {self.scale:g}, {self.good_steps} good steps, "
            f"{self.skipped_steps} skipped{origin}"
        )

    def __rich__(self) -> Table:
        """Show in a terminal."""
        from rich.table import Table
        from rich.text import Text

        table = Table("loss scale", "good steps", "skipped steps", "overflow in")
        numbers = (f"{self.scale:g}", str(self.good_steps), str(self.skipped_steps))
        table.add_row(*numbers, Text(str(self.overflow_origin or "-")))
        return table


def loss_scale_state(
    loss_scale: LossScale | None = None, session: Any = None
) -> LossScaleState:
    """Return the state of loss scaling as it is now.

    Args:
      loss_scale: of which to tell; by default the one that gradients were scaled by
        last, when they were traced.
      session: for gradients in a `tf.Graph`; by default the one in force.

    Raises:
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      ValueError: the state lives in a `tf.Graph`, and there is no Session to read it.
    """
    check_tensorflow()
    from tf_amp.training.loss_scale import variables
    from tf_amp.training.overflow import origin as overflow_origin

    known = variables.latest_state()
    if loss_scale is not None and (known is None or known.loss_scale is not loss_scale):
        known = variables.find_state(loss_scale)
    if known is None:
        return LossScaleState()
    names = ("scale", "good_steps", "skipped_steps")
    scale, good, skipped = known.evaluate(names, session)
    origin = overflow_origin.latest_origin(known.loss_scale)
    return LossScaleState(float(scale), int(good), int(skipped), origin)
