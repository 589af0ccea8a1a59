"""Random programs of products, reads and writes in a fixed order, which 16 bits keep.

Weights are permutations and inputs small integers, so that results are equal to the
last bit unless something was read too early or too late, or did not run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from tests.grappler_pass.rewriting.test_effects import assert_same
from tests.programs import Program
from tests.sketch import Sketch, sketch

_SHAPE = [2, 4]


class _Steps:
    """Steps from one tensor to the next, each of which runs behind the one before."""

    def __init__(self, s: Sketch, seed: int, *, v2: bool) -> None:
        self._random = random.Random(seed)
        numbers = np.arange(8).reshape(_SHAPE)
        self.start = s.feed_value(numbers.astype(np.float32), "x")
        self._images = s.feed_value(numbers.astype(np.uint8), "images")
        self._counter = self._variable(0, v2)
        self._weights = [self._variable(self._permutation(), v2) for _ in range(3)]
        self._steps: Sequence[Callable[[tf.Tensor], tf.Tensor]] = (
            self._multiply,
            self._multiply,
            self._write,
            self._keep,
            self._use_kept,
            self._cast_behind_count,
            self._read_behind_count,
        )
        self._kept = [tf.constant(self._permutation())]

    def run(self, y: tf.Tensor, count: int, depth: int = 0) -> tf.Tensor:
        """Take some steps; what is kept in a loop or branch is used in it only."""
        kept = list(self._kept)
        for _ in range(count):
            nested = self._random.random() < 0.25 and depth < 2
            step = self._random.choice(self._steps)
            y = self._nested(y, depth) if nested else step(y)
        if depth:
            self._kept = kept
        return tf.ensure_shape(y, _SHAPE)

    def _nested(self, y: tf.Tensor, depth: int) -> tf.Tensor:
        def inner(z: tf.Tensor) -> tf.Tensor:
            return self.run(tf.identity(z), self._random.randint(1, 3), depth + 1)

        if self._random.random() < 0.5:
            is_large = tf.reduce_sum(y) > self._random.choice([0.0, 100.0])
            return tf.cond(is_large, lambda: inner(y), lambda: inner(y))
        times = self._random.randint(1, 3)
        rounds = [tf.constant(0), y]
        return tf.while_loop(
            lambda i, _: i < times, lambda i, z: [i + 1, inner(z)], rounds
        )[1]

    def _permutation(self) -> np.ndarray:
        return np.eye(4, dtype=np.float32)[self._random.sample(range(4), 4)]

    def _variable(self, value: object, v2: bool) -> tf.Variable:
        is_resource = v2 or self._random.random() < 0.4
        return tf.compat.v1.Variable(value, use_resource=is_resource)

    def _read(self, y: tf.Tensor) -> tf.Tensor | tf.Variable:
        """Return a weight as it is behind `y`; what reads a ref variable does so."""
        weight = self._random.choice(self._weights)
        if not hasattr(weight, "handle"):
            return weight
        with tf.control_dependencies([y]):
            return weight.read_value()

    def _multiply(self, y: tf.Tensor) -> tf.Tensor:
        return tf.matmul(y, self._read(y))

    def _write(self, y: tf.Tensor) -> tf.Tensor:
        weight = self._random.choice(self._weights)
        with tf.control_dependencies([y]):
            turned = tf.reverse(weight.read_value(), [0])
        with tf.control_dependencies([turned]):
            written = weight.assign(turned)
        with tf.control_dependencies([written]):
            return tf.identity(y)

    def _keep(self, y: tf.Tensor) -> tf.Tensor:
        weight = self._read(y)
        moved = tf.reshape(tf.reshape(weight, [2, 8]), [4, 4])
        self._kept.append(self._random.choice([tf.identity(weight), moved]))
        with tf.control_dependencies(self._kept[-1:]):
            return tf.identity(y)

    def _use_kept(self, y: tf.Tensor) -> tf.Tensor:
        return tf.matmul(y, self._random.choice(self._kept))

    def _count(self, y: tf.Tensor) -> tf.Operation:
        with tf.control_dependencies([y]):
            return self._counter.assign_add(1)

    def _cast_behind_count(self, y: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([self._count(y)]):
            images = tf.cast(self._images, tf.float32)
        return self._multiply(images)

    def _read_behind_count(self, y: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([self._count(y)]):
            weight = self._random.choice(self._weights).read_value()
        return tf.matmul(y, weight)


def random_order(seed: int) -> Program:
    v2 = seed % 4 == 0
    with sketch(v2_control_flow=v2) as s:
        steps = _Steps(s, seed, v2=v2)
        y = steps.run(steps.start, 8)
        return s.program(tf.negative(tf.matmul(y, steps._read(y))), steps=2)


@pytest.mark.parametrize("seed", range(8))
def test_reads_and_writes_in_a_fixed_order_stay_in_it(seed: int) -> None:
    assert_same(random_order(seed), capture=seed % 3 > 0)
