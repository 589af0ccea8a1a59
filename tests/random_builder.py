"""What a random program under construction shares: randomness, variables, feeds."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

Layer = Callable[["Builder", tf.Tensor], tf.Tensor]


@dataclasses.dataclass
class Builder:
    """What a random program under construction shares.

    Attributes:
      rng: the only source of randomness.
      ref_variables: make v1 reference variables rather than resources.
      variables: made so far, in order.
      replayed: how many of them a second trace has met again.
      feeds: placeholder to value; empty when the program is a tf.function.
      ids: integer tensor [batch] with values up to 3000.
      targets: ops to run for their effect.
      uses_random: whether a random op was built.
      has_layers: whether there may be layers of Keras.
      layers: made so far, by the number of variables before.
      trains: whether those layers are to train.
    """

    rng: random.Random
    ref_variables: bool = False
    variables: list[tf.Variable] = dataclasses.field(default_factory=list)
    feeds: dict[tf.Tensor, np.ndarray] = dataclasses.field(default_factory=dict)
    ids: tf.Tensor | None = None
    targets: list[tf.Operation] = dataclasses.field(default_factory=list)
    uses_random: bool = False
    replayed: int | None = None
    has_layers: bool = False
    layers: dict[int, keras.Layer] = dataclasses.field(default_factory=dict)
    trains: bool = False

    def values(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Return normal float32 numbers."""
        normal = np.random.default_rng(self.rng.getrandbits(32)).normal(size=shape)
        return (normal * scale).astype(np.float32)

    def variable(self, *shape: int, scale: float | None = None) -> tf.Tensor:
        """Make a variable outside any loop and return its value."""
        return tf.convert_to_tensor(self.raw_variable(*shape, scale=scale))

    def raw_variable(self, *shape: int, scale: float | None = None) -> tf.Variable:
        """Make a variable outside any loop; when replaying, return the one made."""
        fan_in = float(np.prod(shape[:-1])) or 1.0
        initial = self.values(*shape, scale=scale or fan_in**-0.5)
        if self.replayed is not None:
            self.replayed += 1
            return self.variables[self.replayed - 1]
        with tf.init_scope():
            if tf.executing_eagerly():
                made = tf.Variable(initial)
            else:
                made = tf.compat.v1.Variable(
                    initial, use_resource=not self.ref_variables
                )
        self.variables.append(made)
        return made

    def layer(
        self, make: Callable[[], keras.Layer], *shapes: tf.TensorShape
    ) -> keras.Layer:
        """Build a layer of Keras outside any loop; when replaying, the one made.

        Args:
          make: returns it; draws the same in each trace.
          shapes: of what it is called with.
        """
        made = make()
        if self.replayed is not None:
            made = self.layers[self.replayed]
            self.replayed += len(made.trainable_variables)
        else:
            with tf.init_scope():
                made.build(*shapes)
            self.layers[len(self.variables)] = made
            self.variables.extend(each.value for each in made.trainable_variables)
        for weight in made.trainable_variables:
            fan_in = float(np.prod(weight.shape[:-1])) or 1.0
            initial = self.values(*weight.shape, scale=fan_in**-0.5)
            if self.replayed is None:
                with tf.init_scope():
                    weight.assign(initial)
        return made
