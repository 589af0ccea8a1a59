"""A small program for one test: feeds and weights of fixed random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from tests.programs import Program, control_flow, program_from_graph


class Sketch:
    """A v1 graph under construction, with what feeds it."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        self._feeds: dict[tf.Tensor, np.ndarray] = {}
        self._random = np.random.default_rng(0)

    def values(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Return normal float32 numbers, the same ones in every run."""
        return (self._random.normal(size=shape) * scale).astype(np.float32)

    def feed(self, *shape: int, name: str = "x", scale: float = 1.0) -> tf.Tensor:
        """Feed normal numbers of that shape."""
        return self.feed_value(self.values(*shape, scale=scale), name)

    def feed_value(
        self, value: np.ndarray, name: str, shape: object = "known"
    ) -> tf.Tensor:
        """Feed a value, through a placeholder of another shape if one is given."""
        known = value.shape if shape == "known" else shape
        tensor = tf.compat.v1.placeholder(value.dtype, known, name=name)
        self._feeds[tensor] = value
        return tensor

    def variable(
        self, *shape: int, name: str = "w", use_resource: bool = True
    ) -> tf.Variable:
        """Make a variable of magnitude one over the root of its fan-in."""
        initial = self.values(*shape, scale=float(np.prod(shape[:-1]) or 1) ** -0.5)
        return tf.compat.v1.Variable(initial, name=name, use_resource=use_resource)

    def weight(self, *shape: int, name: str = "w") -> tf.Tensor:
        """Make a resource variable and return its value."""
        return tf.convert_to_tensor(self.variable(*shape, name=name))

    def program(
        self,
        *fetches: tf.Tensor,
        targets: Iterable[tf.Operation] = (),
        steps: int = 1,
    ) -> Program:
        """Freeze what was built."""
        return program_from_graph(
            self.graph, self._feeds, fetches, targets=targets, steps=steps
        )


@contextlib.contextmanager
def sketch(*, v2_control_flow: bool = False) -> Iterator[Sketch]:
    """Build in a fresh graph, with v1 or v2 control flow."""
    made = Sketch()
    with control_flow(v2=v2_control_flow), made.graph.as_default():
        tf.compat.v1.set_random_seed(1)
        yield made
