"""Loss scales: a specification, and three functions of its state.

A loss scale holds no variables. Its state is a mapping of scalar tensors, which
`variables` makes, reads and writes; one specification may have several states, one per
graph and strategy. Two specifications are the same one only if they are one object:
two losses that are to be scaled separately get two objects.

A loss scale of one's own is a class with what it changes:

    class Halving(LossScale):
        def initial_state(self):
            return {"scale": 1024.0}

        def adjust(self, state, seen):
            return {} if seen.finite else {"scale": state["scale"] / 2}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_amp.config.loss_scales.arguments import (
    argument,
    check_arguments,
    check_positive,
    is_number,
)
from tf_amp.errors import ConfigError

# What every state holds beside what its loss scale asks for.
COUNTERS: Mapping[str, int] = {"good_steps": 0, "skipped_steps": 0, "finite": 1}

State = Mapping[str, Any]


class Seen(NamedTuple):
    """The outcome of one call for gradients.

    Attributes:
      finite: whether all unscaled gradients are finite, on every replica. A Python
        bool: `adjust` is traced once for each answer.
      applies: whether that is what happened, bool scalar; of what is returned where it
        is not, nothing is used. For effects other than a new state.
      largest: returns the largest absolute value of the gradients on any replica, as
        a finite float32 scalar, in true units; meaningless where they are not finite.
    """

    finite: bool
    applies: Any
    largest: Callable[[], Any]


class LossScale:
    """A loss scale; what is to differ is overridden."""

    __slots__ = ()

    @property
    def scales(self) -> bool:
        """True where gradients are touched at all."""
        return True

    def initial_state(self) -> Mapping[str, float | int]:
        """Return the state to begin with; "scale" at least.

        A float becomes a float32 scalar, as the scale always does, an int an int64
        one. "good_steps" and "skipped_steps" are counted for every loss scale, unless
        `adjust` does.
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
        """Return True where finite gradients would change nothing, bool scalar.

        Only to save time: `adjust` is then left out. None: not known. A class that
        overrides `adjust` and not this is not asked.

        Args:
          state: scalar tensors by name.
        """
        return None

    def adjust(self, state: State, seen: Seen) -> Mapping[str, Any]:
        """Return the changes of the state after one call for gradients.

        Args:
          state: scalar tensors by name.
          seen: how the gradients came out.
        """
        return {}


@dataclasses.dataclass(frozen=True, eq=False)
class NoOpLossScale(LossScale):
    """No scaling: gradients, optimizers and graphs stay unchanged."""

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

    value: float = argument(dataclasses.MISSING, check_positive)

    def __post_init__(self) -> None:
        """Check the value."""
        check_arguments("StaticLossScale", self)

    def initial_state(self) -> Mapping[str, float | int]:
        """Return the one scale."""
        return {"scale": self.value}

    def rests(self, state: State) -> bool:
        """Return True."""
        return True


def find_rests(loss_scale: Any) -> Callable[[State], Any]:
    """Return the `rests` of a loss scale, unless its `adjust` is that of a subclass.

    Of whatever class: one that knows nothing of this is never at rest.
    """
    places = [getattr(loss_scale, "__dict__", {}), *map(vars, type(loss_scale).__mro__)]
    first = next((p for p in places if "adjust" in p or "rests" in p), None)
    if first is not None and "rests" not in first:
        return lambda state: None
    return getattr(loss_scale, "rests", lambda state: None)


def check_names(loss_scale: LossScale, changed: State, state: State) -> None:
    """Raise ConfigError if a loss scale changes what its state does not hold."""
    unknown = [name for name in changed if name not in state]
    if unknown:
        known = ", ".join(name for name in state if name not in COUNTERS)
        raise ConfigError(
            f"{type(loss_scale).__name__}.adjust returned {unknown[0]!r}; "
            f"initial_state names {known}."
        )


def first_state(loss_scale: LossScale) -> dict[str, float | int]:
    """Return the state that a loss scale begins with, its scale a float.

    Raises:
      ConfigError: there is no scale, or it is no number.
    """
    state = dict(loss_scale.initial_state())
    if not is_number(state.get("scale")):
        own = ", ".join(f"{name}={value!r}" for name, value in state.items())
        raise ConfigError(
            f"{type(loss_scale).__name__}.initial_state returned {own}; it must hold "
            'a number "scale".'
        )
    return {**state, "scale": float(state["scale"])}
