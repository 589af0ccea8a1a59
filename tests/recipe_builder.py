"""What the parts of a recipe share while its program is built.

Every feed and every variable's first value is drawn anew for each sample, so that an
error is known by more than one roll of the dice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

Draw = Callable[[np.random.Generator], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Sample:
    """Values by tensor name: fed in every step, and to the initializers."""

    feeds: Mapping[str, np.ndarray]
    initial: Mapping[str, np.ndarray]


@dataclasses.dataclass
class Builder:
    """A v1 graph under construction.

    Attributes:
      batch: rows of the data.
      width: columns of the data and inner size of products.
      positive: whether what is fed has one sign.
      ref_variables: make v1 reference variables rather than resources.
      feeds: placeholder to how its value is drawn.
      initial: constant that initializes a variable to how it is drawn.
      weights: variables that are trained, in order.
      fetches: what is compared, by role.
      targets: ops to run for their effect.
    """

    batch: int
    width: int
    positive: bool = False
    ref_variables: bool = False
    feeds: dict[tf.Tensor, Draw] = dataclasses.field(default_factory=dict)
    initial: dict[tf.Tensor, Draw] = dataclasses.field(default_factory=dict)
    weights: list[tf.Variable] = dataclasses.field(default_factory=list)
    fetches: list[tf.Tensor] = dataclasses.field(default_factory=list)
    targets: list[tf.Operation] = dataclasses.field(default_factory=list)

    def feed(self, draw: Draw) -> tf.Tensor:
        """Return a placeholder of the shape and dtype of what `draw` returns."""
        value = draw(np.random.default_rng(0))
        tensor = tf.compat.v1.placeholder(value.dtype, value.shape, name="x")
        self.feeds[tensor] = draw
        return tensor

    def data(self, *shape: int, scale: float = 1.0, offset: float = 0.0) -> tf.Tensor:
        """Feed normal numbers, or their magnitudes where the data has one sign."""

        def draw(rng: np.random.Generator) -> np.ndarray:
            value = rng.normal(size=shape)
            value = np.abs(value) if self.positive else value
            return (value * scale + offset).astype(np.float32)

        return self.feed(draw)

    def state(self, *shape: int, scale: float = 0.0, offset: float = 0.0) -> tf.Tensor:
        """Make a variable that is not trained."""

        def draw(rng: np.random.Generator) -> np.ndarray:
            return (rng.normal(size=shape) * scale + offset).astype(np.float32)

        initial = tf.constant(draw(np.random.default_rng(0)), name="initial")
        self.initial[initial] = draw
        return tf.compat.v1.Variable(
            initial, use_resource=not self.ref_variables, trainable=False, name="v"
        )

    def weight(
        self, *shape: int, scale: float | None = None, offset: float = 0.0
    ) -> tf.Tensor:
        """Make a variable that is trained and return its value.

        Args:
          shape: of the variable.
          scale: of its normal numbers; one over the root of its fan-in by default.
          offset: added to them.
        """
        fan_in = float(np.prod(shape[:-1])) or 1.0
        scale = fan_in**-0.5 if scale is None else scale
        self.weights.append(self.state(*shape, scale=scale, offset=offset))
        return tf.convert_to_tensor(self.weights[-1])

    def fetch(self, value: tf.Tensor, role: str) -> None:
        """Have a value compared."""
        self.fetches.append(tf.identity(value, name=role))

    def sample(self, index: int) -> Sample:
        """Draw what the program gets in the sample of that number."""
        return Sample(_drawn(self.feeds, (index, 0)), _drawn(self.initial, (index, 1)))


def _drawn(draws: Mapping[tf.Tensor, Draw], key: tuple[int, int]) -> dict:
    return {
        tensor.name: draw(np.random.default_rng((*key, place)))
        for place, (tensor, draw) in enumerate(draws.items())
    }
