"""The loss scale that grows until gradients overflow, and then backs off."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tf_amp.config.loss_scales.arguments import (
    check_bounds,
    check_count,
    check_power_of_two,
)
from tf_amp.config.loss_scales.protocol import LossScale, Seen, State
from tf_amp.errors import ConfigError
from tf_amp.message_codes import Code

_OWNER = "DynamicLossScale"
# What each of these must exceed, and what it must stay under.
_POWERS = {
    "initial": (0.0, math.inf),
    "growth_factor": (1.0, math.inf),
    "backoff_factor": (0.0, 1.0),
    "minimum": (0.0, math.inf),
    "maximum": (0.0, math.inf),
}
_AT_MINIMUM = ("warn", "raise", "float32")
STEPS_BETWEEN_WARNINGS = 1000


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

    initial: float = 2.0**15
    growth_interval: int = 2000
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    minimum: float = 1.0
    maximum: float = 2.0**24
    hysteresis: int = 1
    at_minimum: str = "warn"

    def __post_init__(self) -> None:
        """Check every argument."""
        for name, (above, below) in _POWERS.items():
            value = getattr(self, name)
            value = check_power_of_two(_OWNER, name, value, above=above, below=below)
            object.__setattr__(self, name, value)
        for name in ("growth_interval", "hysteresis"):
            count = check_count(_OWNER, name, getattr(self, name))
            object.__setattr__(self, name, count)
        check_bounds(_OWNER, self.initial, self.minimum, self.maximum)
        if self.at_minimum not in _AT_MINIMUM:
            raise ConfigError(
                f"{_OWNER}: at_minimum={self.at_minimum!r}; allowed are "
                f"{', '.join(_AT_MINIMUM)}."
            )

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
        from tf_amp._tensorflow_private import training as private

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
                    "%s: at_minimum=%r has no effect in functions compiled by XLA; "
                    "tf_amp.loss_scale_state() counts how often they overflow.",
                    1,
                    _OWNER,
                    self.at_minimum,
                )
            return []
        if self.at_minimum == "raise":
            return _if_any(tf.debugging.Assert(tf.logical_not(stuck), [message]))

        def say() -> Any:
            printed = tf.print(message, output_stream=tf.compat.v1.logging.warning)
            with tf.control_dependencies(_if_any(printed)):
                return tf.constant(True)

        due = state["stuck_steps"] % STEPS_BETWEEN_WARNINGS == 0
        return _if_any(tf.cond(tf.logical_and(stuck, due), say, lambda: False))


def _if_any(operation: Any) -> list[Any]:
    """Return the operations to depend on; eager execution leaves none, or a value."""
    import tensorflow as tf

    graph_mode = not tf.executing_eagerly()
    return [operation] if graph_mode and operation is not None else []
