"""What the loss scale of a running `fit` has come to.

There may be several loss scales in a process. The one in use is the one whose state
has changed since `fit` began; where none has, nothing is scaled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from keras_callbacks.standing_aside import scales_losses
from keras_callbacks.values import number

_NAMES = ("scale", "skipped_steps", "good_steps")
_Values = tuple[float, int, int]


@dataclasses.dataclass(frozen=True)
class ScaleReading:
    """A loss scale after the steps so far.

    Attributes:
      loss_scale: what losses are multiplied by; 1 where nothing is scaled.
      skipped_steps: steps whose gradients overflowed, since the scale was new; NaN
        where an optimizer of tf_keras scales losses, which does not tell.
      good_steps: steps with finite gradients since an overflow or a change of scale;
        where nothing is scaled, the steps of this `fit`.
      skipped_here: of the skipped steps those of this `fit`.
      is_own: whether it is the optimizer's own, and not this package's.
    """

    loss_scale: float = 1.0
    skipped_steps: float = 0
    good_steps: int = 0
    skipped_here: float = 0
    is_own: bool = False

    def as_logs(self) -> dict[str, float | int]:
        """Return what goes into the logs."""
        return {
            "loss_scale": self.loss_scale,
            "skipped_steps": self.skipped_steps,
            "good_steps": self.good_steps,
        }


class ScaleReadings:
    """Reads the loss scale of one `fit`; each reading waits for the device."""

    def __init__(self, model: Any = None) -> None:
        """Remember how all states are before the first step.

        To be made once a checkpoint that is resumed from has been restored.

        Args:
          model: whose optimizer may scale losses by itself.
        """
        self._optimizer: Any = getattr(model, "optimizer", None)
        self._scales_itself = scales_losses(self._optimizer)
        self._begin = {id(state): _values_of(state) for state in _states()}
        self._restored = _restored_values()
        self._applied_at_begin = self._applied()
        self._state: Any = None

    def read(self, steps: int = 0) -> ScaleReading:
        """Return how the loss scale is now.

        Args:
          steps: of this `fit`, for where nothing counts them.
        """
        if self._scales_itself:
            return self._own(steps)
        for state in _states():
            if self._state is None and _values_of(state) != self._begin_of(state):
                self._state = state
        if self._state is None:
            return ScaleReading(good_steps=steps)
        scale, skipped, good = _values_of(self._state)
        before = self._begin_of(self._state)[1]
        return ScaleReading(scale, skipped, good, max(skipped - before, 0))

    def _begin_of(self, state: Any) -> _Values:
        known = self._begin.get(id(state))
        return known or self._restored.get(_kind_of(state)) or _chosen(state.fresh)

    def _own(self, steps: int) -> ScaleReading:
        """Read the scale of an optimizer of Keras' that scales losses itself."""
        optimizer = self._optimizer
        keras_3 = hasattr(optimizer, "dynamic_scale")
        scale = optimizer.dynamic_scale if keras_3 else optimizer.loss_scale
        good = optimizer.step_counter if keras_3 else optimizer.dynamic_counter
        applied = self._applied() - self._applied_at_begin
        # That of tf_keras counts skipped steps as if they had been taken.
        skipped = max(steps - applied, 0) if keras_3 else math.nan
        if scale is None:
            scale = optimizer.initial_scale
        return ScaleReading(number(scale), skipped, _whole(good), skipped, True)

    def _applied(self) -> int:
        """Return how many steps an optimizer that scales losses has taken."""
        inner = getattr(self._optimizer, "inner_optimizer", None)
        return _whole(getattr(inner, "iterations", 0))


def _states() -> list[Any]:
    from tf_amp.loss_scaling import variables

    return variables.states_here()


def _values_of(state: Any) -> _Values:
    return _chosen(dict(zip(_NAMES, state.evaluate(_NAMES), strict=True)))


def _restored_values() -> dict[str, _Values]:
    """Return what states that are still to be made begin with, by kind."""
    from tf_amp.loss_scaling import resumption

    return {s.kind: _chosen(s.values) for s in resumption.still_waiting()}


def _kind_of(state: Any) -> str:
    from tf_amp.loss_scaling import resumption

    return resumption.kind_of(state.loss_scale)


def _chosen(values: Mapping[str, float | int]) -> _Values:
    scale, skipped, good = (values[name] for name in _NAMES)
    return float(scale), int(skipped), int(good)


def _whole(value: Any) -> int:
    return 0 if value is None else int(number(value))
