"""The loss scales that follow the gradients: by search, and by how large they were."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tf_amp.config.loss_scales.arguments import (
    argument,
    check_arguments,
    check_bounds,
    check_count,
    check_power_of_two,
    check_within,
    check_word,
    is_number,
)
from tf_amp.config.loss_scales.protocol import LossScale, Seen, State
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code

STEPS_BETWEEN_WARNINGS = 1000
# log2 of the first power of two that float16 cannot hold.
_RANGE = 16.0
# Where all gradients are zero, their logarithm says nothing.
_SMALLEST = 2.0**-126


@dataclasses.dataclass(frozen=True, eq=False)
class DynamicLossScale(LossScale):
    """Multiply after a run of finite steps, divide after overflows.

    All factors are powers of two, so that scaling rounds nothing.

    Attributes:
      initial: the scale to begin with.
      growth_interval: finite steps in a row after which the scale grows.
      growth_factor: what it is then multiplied by; above 1.
      backoff_factor: what it is multiplied by after an overflow; between 0 and 1.
      minimum: no scale is lower; may be below 1.
      maximum: no scale is higher.
      hysteresis: how many overflows it takes, since the scale last changed, to back
        off.
      at_minimum: what an overflow at the lowest scale leads to: "warn" now and then,
        "raise" InvalidArgumentError, or "float32": return the operation that
        overflows to float32. Functions compiled by XLA can do none of these.

    Raises:
      ConfigError: an argument is out of range, or two contradict each other.

    References: Micikevicius et al., arXiv:1710.03740, section 3.2.
    """

    initial: float = argument(2.0**15, check_power_of_two)
    growth_interval: int = argument(2000, check_count)
    growth_factor: float = argument(2.0, check_power_of_two, above=1.0)
    backoff_factor: float = argument(0.5, check_power_of_two, below=1.0)
    minimum: float = argument(1.0, check_power_of_two)
    maximum: float = argument(2.0**24, check_power_of_two)
    hysteresis: int = argument(1, check_count)
    at_minimum: str = argument("warn", check_word, allowed=("warn", "raise", "float32"))

    def __post_init__(self) -> None:
        """Check every argument."""
        check_arguments("DynamicLossScale", self)
        check_bounds("DynamicLossScale", self.initial, self.minimum, self.maximum)

    def initial_state(self) -> Mapping[str, float | int]:
        """Return the first scale, with no overflow counted yet."""
        return {"scale": self.initial, "overflows": 0, "stuck_steps": 0}

    def rests(self, state: State) -> Any:
        """Return True unless the next finite step is the one after which to grow."""
        return state["good_steps"] < self.growth_interval - 1

    def adjust(self, state: State, seen: Seen) -> Mapping[str, Any]:
        """Count the step, and change the scale when its time has come."""
        import tensorflow as tf

        scale = state["scale"]
        if seen.finite:
            good = state["good_steps"] + 1
            grows = good >= self.growth_interval
            none = tf.zeros_like(good)
            # The maximum is finite, so the product is cut before it can stay infinite.
            grown = tf.minimum(scale * self.growth_factor, self.maximum)
            return {
                "good_steps": tf.where(grows, none, good),
                "scale": tf.where(grows, grown, scale),
                "overflows": tf.where(grows, none, state["overflows"]),
            }
        overflows = state["overflows"] + 1
        backs_off = overflows >= self.hysteresis
        lower = tf.maximum(scale * self.backoff_factor, self.minimum)
        stuck = tf.logical_and(backs_off, scale <= self.minimum)
        here = tf.logical_and(stuck, seen.applies)
        with tf.control_dependencies(self._complaints(state, here)):
            return {
                "scale": tf.where(backs_off, lower, scale),
                "overflows": tf.where(backs_off, tf.zeros_like(overflows), overflows),
                "stuck_steps": state["stuck_steps"] + tf.cast(stuck, tf.int64),
            }

    def _complaints(self, state: State, stuck: Any) -> list[Any]:
        """Return operations that say what it means to be stuck at the minimum."""
        import tensorflow as tf

        # Imported here: the configuration is read in broken installations too.
        from grappler_pass.annotations import NOTICE
        from tf_amp._tensorflow_private import training as private
        from tf_amp._tensorflow_private.tracing import put_attribute

        message = Code.LOWEST_SCALE.ends(
            f"Gradients overflow at the lowest loss scale, {self.minimum}: the step is "
            "skipped. The model diverges, or an operation overflows in its forward "
            "pass."
        )
        if private.in_xla_context():
            if self.at_minimum != "warn":
                # Imported here: settings are read where nothing but Python is there.
                from absl import logging

                logging.log_first_n(
                    logging.WARNING,
                    "DynamicLossScale: at_minimum=%r has no effect in functions "
                    "compiled by XLA; tf_amp.loss_scale_state() counts how often they "
                    "overflow.",
                    1,
                    self.at_minimum,
                )
            return []
        if self.at_minimum == "raise":
            return _if_any(tf.debugging.Assert(tf.logical_not(stuck), [message]))

        def say() -> Any:
            printed = tf.print(message, output_stream=tf.compat.v1.logging.warning)
            if printed is not None:
                put_attribute(printed, NOTICE, b=True)
            with tf.control_dependencies(_if_any(printed)):
                return tf.constant(True)

        due = state["stuck_steps"] % STEPS_BETWEEN_WARNINGS == 0
        return _if_any(tf.cond(tf.logical_and(stuck, due), say, lambda: False))


def _if_any(operation: Any) -> list[Any]:
    """Return the operations to depend on; eager execution leaves none, or a value."""
    import tensorflow as tf

    graph_mode = not tf.executing_eagerly()
    return [operation] if graph_mode and operation is not None else []


def _check_deviations(owner: str, name: str, value: float) -> float:
    if not is_number(value) or not 0 <= value < math.inf:
        raise ConfigError(f"{owner}: {name}={value!r}; it must be 0 or more.")
    return float(value)


@dataclasses.dataclass(frozen=True, eq=False)
class StatisticalLossScale(LossScale):
    """Scale by 2^(16 - mean - deviations * deviation) of log2(max |gradient|).

    Were the logarithm normally distributed, 3.09 deviations would leave an overflow
    probability of 0.001. The exponent is rounded down, so that scaling rounds nothing.
    An overflow counts as a gradient twice as large as would just have fitted, and
    halves the scale at once.

    Attributes:
      initial: the scale until there are gradients to choose it by.
      deviations: how many standard deviations to keep away from float16's limit.
      decay: weight of the past in the running mean and deviation; between 0 and 1.
      minimum: no scale is lower; may be below 1.
      maximum: no scale is higher.

    Raises:
      ConfigError: an argument is out of range, or two contradict each other.

    References: Kuchaiev et al., OpenSeq2Seq, arXiv:1805.10387 ("LogMax").
    """

    initial: float = argument(2.0**15, check_power_of_two)
    deviations: float = argument(3.09, _check_deviations)
    decay: float = argument(0.99, check_within, above=0.0, below=1.0)
    minimum: float = argument(1.0, check_power_of_two)
    maximum: float = argument(2.0**24, check_power_of_two)

    def __post_init__(self) -> None:
        """Check every argument."""
        check_arguments("StatisticalLossScale", self)
        check_bounds("StatisticalLossScale", self.initial, self.minimum, self.maximum)

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
