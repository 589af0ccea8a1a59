"""Loss scales that never change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_amp.config.loss_scales.arguments import check_positive
from tf_amp.config.loss_scales.protocol import LossScale, State


@dataclasses.dataclass(frozen=True, eq=False)
class NoOpLossScale(LossScale):
    """No scaling: gradients, optimizers and graphs stay as they are."""

    @property
    def scales(self) -> bool:
        """Never."""
        return False


@dataclasses.dataclass(frozen=True, eq=False)
class StaticLossScale(LossScale):
    """One scale for good; overflowing steps are skipped all the same.

    Attributes:
      value: what the loss is multiplied by, positive. With a power of two, gradients
        come out bit by bit as unscaled ones would; with any other number they are
        rounded twice, by up to 2**-23 of their size.
    """

    value: float

    def __post_init__(self) -> None:
        """Check the value."""
        value = check_positive("StaticLossScale", "value", self.value)
        object.__setattr__(self, "value", value)

    def initial_state(self) -> Mapping[str, float | int]:
        """Return the one scale."""
        return {"scale": self.value}

    def rests(self, state: State) -> bool:
        """Return True."""
        return True
