"""The loss scale that follows from how large gradients have been, with no search."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tf_amp.config.loss_scales.arguments import (
    check_bounds,
    check_power_of_two,
    check_within,
    is_number,
)
from tf_amp.config.loss_scales.protocol import LossScale, Seen, State
from tf_amp.errors import ConfigError

_OWNER = "StatisticalLossScale"
# log2 of the first power of two that float16 cannot hold.
_RANGE = 16.0
# Where all gradients are zero, their logarithm says nothing.
_SMALLEST = 2.0**-126


@dataclasses.dataclass(frozen=True, eq=False)
class StatisticalLossScale(LossScale):
    """Scale by 2^(16 - mean - deviations * deviation) of log2(max |gradient|).

    Were the logarithm normally distributed, 3.09 deviations would leave an overflow
    probability of 0.001. The exponent is rounded down, so that scaling rounds nothing.
    An overflow counts as a gradient twice as large as would just have fitted, and
    halves the scale at once.

    Attributes:
      initial: the scale until there is something to go by.
      deviations: how many standard deviations to keep away from float16's limit.
      decay: weight of the past in the running mean and deviation; between 0 and 1.
      minimum: no scale is lower; may be below 1.
      maximum: no scale is higher.

    Raises:
      ConfigError: an argument is out of range, or two contradict each other.

    References: Kuchaiev et al., OpenSeq2Seq, arXiv:1805.10387 ("LogMax").
    """

    initial: float = 2.0**15
    deviations: float = 3.09
    decay: float = 0.99
    minimum: float = 1.0
    maximum: float = 2.0**24

    def __post_init__(self) -> None:
        """Check every argument."""
        for name in ("initial", "minimum", "maximum"):
            value = check_power_of_two(_OWNER, name, getattr(self, name))
            object.__setattr__(self, name, value)
        check_bounds(_OWNER, self.initial, self.minimum, self.maximum)
        decay = check_within(_OWNER, "decay", self.decay, above=0.0, below=1.0)
        object.__setattr__(self, "decay", decay)
        if not is_number(self.deviations) or not 0 <= self.deviations < math.inf:
            raise ConfigError(
                f"{_OWNER}: deviations={self.deviations!r}; it must be 0 or more."
            )
        object.__setattr__(self, "deviations", float(self.deviations))

    def initial_state(self) -> Mapping[str, float | int]:
        """Return the first scale, with nothing seen yet."""
        return {"scale": self.initial, "mean": 0.0, "square": 0.0, "weight": 0.0}

    def adjust(self, state: State, seen: Seen) -> Mapping[str, Any]:
        """Take the gradients into the running figures, and follow them."""
        import tensorflow as tf

        if not seen.finite:
            at_limit = _RANGE - _log2(state["scale"])
            values = self._follow(state, at_limit + 1.0)
            halved = tf.maximum(state["scale"] / 2, self.minimum)
            return {**values, "scale": tf.minimum(values["scale"], halved)}
        largest = seen.largest()
        values = self._follow(state, _log2(tf.maximum(largest, _SMALLEST)))
        nothing_seen = largest < _SMALLEST
        return {
            name: tf.where(nothing_seen, state[name], value)
            for name, value in values.items()
        }

    def _follow(self, state: State, seen: Any) -> dict[str, Any]:
        import tensorflow as tf

        mean, square, weight = (
            state[name] * self.decay + value * (1 - self.decay)
            for name, value in (("mean", seen), ("square", seen**2), ("weight", 1.0))
        )
        variance = tf.maximum(square / weight - (mean / weight) ** 2, 0.0)
        exponent = _RANGE - mean / weight - self.deviations * tf.sqrt(variance)
        low, high = math.log2(self.minimum), math.log2(self.maximum)
        exponent = tf.floor(tf.clip_by_value(exponent, low, high))
        # 2 to a whole number; `pow` is not exact on every device.
        bits = tf.bitwise.left_shift(tf.cast(exponent, tf.int32) + 127, 23)
        scale = tf.bitcast(bits, tf.float32)
        return {"scale": scale, "mean": mean, "square": square, "weight": weight}


def _log2(value: Any) -> Any:
    import tensorflow as tf

    return tf.math.log(value) / math.log(2.0)
