"""What a loss scale is: a specification, and three functions of its state.

A loss scale holds no variables. Its state is a mapping of scalar tensors, which
`variables` makes, reads and writes; one specification may have several states, one per
graph and strategy. Two specifications are the same one only if they are one object:
two losses that are to be scaled apart get two objects.

A loss scale of one's own is a class with what it changes:

    class Halving(LossScale):
        def initial_state(self):
            return {"scale": 1024.0}

        def adjust(self, state, seen):
            return {} if seen.finite else {"scale": state["scale"] / 2}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_amp.errors import ConfigError

# What every state holds beside what its loss scale asks for.
COUNTERS: Mapping[str, int] = {"good_steps": 0, "skipped_steps": 0, "finite": 1}

State = Mapping[str, Any]
LARGEST_FLOAT = 2.0**127


@dataclasses.dataclass(frozen=True)
class Seen:
    """What one call for gradients has shown.

    Attributes:
      finite: whether all unscaled gradients are finite, on every replica. A Python
        bool: `adjust` is traced once for each answer.
      applies: whether that is what happened, bool scalar; of what is returned where it
        is not, nothing is used. For effects other than a new state.
      largest: returns the largest absolute value of the gradients, float32 scalar, in
        true units; meaningless where they are not finite.
    """

    finite: bool
    applies: Any
    largest: Callable[[], Any]


class LossScale:
    """A loss scale; what is to differ is overridden."""

    __slots__ = ()

    @property
    def scales(self) -> bool:
        """Whether gradients are touched at all."""
        return True

    def initial_state(self) -> Mapping[str, float | int]:
        """Return the state to begin with; "scale" at least.

        A float becomes a float32 scalar, an int an int64 one. "good_steps" and
        "skipped_steps" are counted for every loss scale, unless `adjust` does.
        """
        return {"scale": 1.0}

    def scale(self, seeds: Sequence[Any], state: State) -> list[Any]:
        """Return the gradients to start from, multiplied.

        Args:
          seeds: floating or complex tensors of any shape.
          state: scalar tensors by name.
        """
        import tensorflow as tf

        return [seed * tf.cast(state["scale"], seed.dtype) for seed in seeds]

    def unscale(self, gradients: Sequence[Any], state: State) -> list[Any]:
        """Return the gradients in true units; the inverse of `scale`.

        Args:
          gradients: tensors of at least float32's precision.
          state: the same that `scale` was given.
        """
        import tensorflow as tf

        inverse = tf.math.reciprocal(state["scale"])
        return [g * tf.cast(inverse, g.dtype) for g in gradients]

    def rests(self, state: State) -> Any:
        """Return whether finite gradients would change nothing, bool scalar.

        Only to save time: `adjust` is then left out. None: not known.

        Args:
          state: scalar tensors by name.
        """
        return None

    def adjust(self, state: State, seen: Seen) -> Mapping[str, Any]:
        """Return what changes in the state after one call for gradients.

        Args:
          state: scalar tensors by name.
          seen: how the gradients came out.
        """
        return {}


def check_names(loss_scale: LossScale, changed: State, state: State) -> None:
    """Raise ConfigError if a loss scale changes what its state does not hold."""
    unknown = [name for name in changed if name not in state]
    if unknown:
        known = ", ".join(name for name in state if name not in COUNTERS)
        raise ConfigError(
            f"{type(loss_scale).__name__}.adjust returned {unknown[0]!r}; "
            f"initial_state names {known}."
        )


def check_has_scale(loss_scale: LossScale, state: State) -> None:
    """Raise ConfigError unless the state of a loss scale holds the scale."""
    if "scale" not in state:
        own = ", ".join(name for name in state if name not in COUNTERS)
        raise ConfigError(
            f"{type(loss_scale).__name__}.initial_state returned {own}; it must hold "
            '"scale".'
        )


def check_power_of_two(owner: str, name: str, value: float) -> None:
    """Raise ConfigError unless the value is a power of two within float32's range."""
    check_positive(owner, name, value)
    if math.frexp(value)[0] != 0.5:
        near = 2.0 ** round(math.log2(value))
        raise ConfigError(
            f"{owner}: {name}={value!r} is not a power of two, so that scaling would "
            f"round every gradient; the nearest is {near!r}."
        )


def check_positive(owner: str, name: str, value: float) -> None:
    """Raise ConfigError unless the value is a positive number float32 can hold."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 1 / LARGEST_FLOAT <= value <= LARGEST_FLOAT:
        raise ConfigError(
            f"{owner}: {name}={value!r}; allowed are positive numbers from 2**-127 to "
            "2**127."
        )


def check_count(owner: str, name: str, value: int) -> None:
    """Raise ConfigError unless the value is a whole number of at least one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(
            f"{owner}: {name}={value!r}; allowed are whole numbers from 1 on."
        )


def check_bounds(owner: str, initial: float, minimum: float, maximum: float) -> None:
    """Raise ConfigError unless minimum <= initial <= maximum."""
    if minimum > maximum:
        raise ConfigError(f"{owner}: minimum={minimum!r} is above maximum={maximum!r}.")
    if not minimum <= initial <= maximum:
        raise ConfigError(
            f"{owner}: initial={initial!r} lies outside of minimum={minimum!r} and "
            f"maximum={maximum!r}."
        )
