"""What a loss scale has come to, for users and callbacks, and how they change it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tf_amp.config.loss_scales.adaptive import DynamicLossScale
from tf_amp.config.loss_scales.arguments import check_power_of_two
from tf_amp.config.loss_scales.protocol import LossScale
from tf_amp.errors import ConfigError
from tf_amp.report.display import Display
from tf_amp.tensorflow_version import check_tensorflow

if TYPE_CHECKING:
    from tf_amp.training.overflow_origin import OverflowOrigin
    from tf_amp.training.scale_state import ScaleState


@dataclasses.dataclass(frozen=True, repr=False)
class LossScaleState(Display):
    """A loss scale after the steps so far.

    Attributes:
      scale: what losses are multiplied by; 1 without scaling.
      good_steps: steps with finite gradients since an overflow or a change of scale.
      skipped_steps: steps whose gradients overflowed, but for those that were taken
        again without a loss scale, and are finite.
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

    __str__ = Display.__repr__

    def __rich__(self) -> Table:
        """Show in a terminal."""
        table = Table("loss scale", "good steps", "skipped steps", "overflow in")
        numbers = (f"{self.scale:g}", str(self.good_steps), str(self.skipped_steps))
        table.add_row(*numbers, Text(str(self.overflow_origin or "-")))
        return table


def loss_scale_state(
    loss_scale: LossScale | None = None, session: Any = None
) -> LossScaleState:
    """Return the present state of loss scaling.

    Args:
      loss_scale: which one; by default the one that gradients were scaled by
        last, when they were traced.
      session: for gradients in a `tf.Graph`; by default the one in force.

    Raises:
      TensorFlowMissingError: TensorFlow is not installed, or too old.
      ConfigError: the state lives in a `tf.Graph`, and there is no Session to read it.
    """
    check_tensorflow()
    from tf_amp.training import overflow_origin

    known = _state_of(loss_scale)
    if known is None:
        return LossScaleState()
    values = known.evaluate(session)
    good_steps, skipped_steps = int(values["good_steps"]), int(values["skipped_steps"])
    origin = overflow_origin.latest_origin(known.loss_scale)
    return LossScaleState(float(values["scale"]), good_steps, skipped_steps, origin)


def set_loss_scale(
    value: float, loss_scale: DynamicLossScale | None = None, session: Any = None
) -> None:
    """Let the next step begin with another scale; nothing is traced again for that.

    The scale grows and backs off from there as before, and the steps until it grows are
    counted from zero. Not to be called while a step runs.

    Args:
      value: what losses are to be multiplied by, a power of two between the loss
        scale's minimum and maximum.
      loss_scale: which to set; by default the one that gradients were scaled by last,
        when they were traced.
      session: for gradients in a `tf.Graph`; by default the one in force.

    Raises:
      ConfigError: the value is none of those, no gradients have been scaled by such a
        loss scale yet, it is not a dynamic one, or its state lives in a `tf.Graph` and
        there is no Session to set it.
      TensorFlowMissingError: TensorFlow is not installed, or too old.
    """
    check_tensorflow()
    known = _state_of(loss_scale)
    if known is None:
        raise ConfigError(
            "set_loss_scale: no gradients have been scaled yet; the first scale is "
            "that of enable(loss_scale=DynamicLossScale(initial=...))."
        )
    scaling = known.loss_scale
    if not isinstance(scaling, DynamicLossScale):
        raise ConfigError(
            f"set_loss_scale: {scaling!r} is in force, and sets its scale itself; one "
            "that can be set is a DynamicLossScale."
        )
    owner = "set_loss_scale"
    scale = check_power_of_two(owner, "value", value)
    if not scaling.minimum <= scale <= scaling.maximum:
        raise ConfigError(
            f"{owner}: value={value!r} lies outside of minimum={scaling.minimum!r} and "
            f"maximum={scaling.maximum!r} of the loss scale in force."
        )
    since = {"good_steps": 0, "overflows": 0, "stuck_steps": 0}
    known.replace({**known.evaluate(session), **since, "scale": scale}, session)


def _state_of(loss_scale: LossScale | None) -> ScaleState | None:
    from tf_amp.training import scale_state

    known = scale_state.latest_state()
    if loss_scale is None or (known is not None and known.loss_scale is loss_scale):
        return known
    return scale_state.find_state(loss_scale)
