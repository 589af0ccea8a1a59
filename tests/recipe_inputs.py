"""What a recipe begins with: data, and arithmetic on it before the first product.

Each returns [batch, width] of magnitude one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tests.recipe_builder import Builder

# Beyond what 16 bits can distinguish.
IDS = 5000


def plain(b: Builder) -> tf.Tensor:
    """Feed data as it is."""
    return b.data(b.batch, b.width)


def shifted(b: Builder) -> tf.Tensor:
    """Bring raw numbers around 2000 to magnitude one."""
    return (b.data(b.batch, b.width, scale=8.0, offset=2000.0) - 2000.0) / 8.0


def pixels(b: Builder) -> tf.Tensor:
    """Bring bytes to 0..1."""
    shape = (b.batch, b.width)
    raw = b.feed(lambda rng: rng.integers(0, 256, shape).astype(np.float32))
    return raw / 255.0


def counted(b: Builder) -> tf.Tensor:
    """Count batches whenever whole numbers become floating ones."""
    shape = (b.batch, b.width)
    raw = b.feed(lambda rng: rng.integers(-2, 3, shape).astype(np.int8))
    with tf.control_dependencies([b.state().assign_add(1.0)]):
        return tf.cast(raw, tf.float32)


def angles(b: Builder) -> tf.Tensor:
    """Make sines and cosines of positions up to 5000."""
    places = b.feed(lambda rng: rng.integers(0, IDS, b.batch).astype(np.float32))
    pace = tf.constant(10.0 ** -np.linspace(0.0, 3.0, b.width // 2), tf.float32)
    turns = places[:, tf.newaxis] * pace
    return tf.concat([tf.sin(turns), tf.cos(turns)], axis=1)


def outer_angles(b: Builder) -> tf.Tensor:
    """Make the same of an outer product that einsum writes."""
    places = b.feed(lambda rng: rng.integers(0, IDS, b.batch).astype(np.float32))
    pace = tf.constant(10.0 ** -np.linspace(0.0, 3.0, b.width // 2), tf.float32)
    turns = tf.einsum("i,j->ij", places, pace)
    return tf.concat([tf.sin(turns), tf.cos(turns)], axis=1)


def whole(b: Builder) -> tf.Tensor:
    """Take the whole part of data."""
    return 0.1 * tf.floor(b.data(b.batch, b.width, scale=10.0))


def nearest(b: Builder) -> tf.Tensor:
    """Round data to whole numbers."""
    return 0.1 * tf.round(b.data(b.batch, b.width, scale=10.0))


def remainder(b: Builder) -> tf.Tensor:
    """Take what division of data by 7 leaves."""
    return tf.math.floormod(b.data(b.batch, b.width, scale=300.0), 7.0) - 3.5


def equality(b: Builder) -> tf.Tensor:
    """Compare ids that are held as floating numbers, and use them as data, too."""
    size = b.batch * b.width
    raw = b.feed(lambda rng: (4000 + rng.integers(0, 8, size)).astype(np.float32))
    ids = tf.reshape(raw, [b.batch, b.width])
    b.fetch(tf.equal(ids, ids[:, :1]), "equal")
    return ids / 4096.0


def one_hot(b: Builder) -> tf.Tensor:
    """Mark the place of an id."""
    ids = b.feed(lambda rng: rng.integers(0, b.width, b.batch).astype(np.int32))
    return tf.one_hot(ids, b.width)


def embedding(b: Builder) -> tf.Tensor:
    """Look rows up in a table."""
    ids = b.feed(lambda rng: rng.integers(0, 50, b.batch).astype(np.int32))
    return tf.nn.embedding_lookup(b.weight(50, b.width, scale=1.0), ids)


def returns(b: Builder) -> tf.Tensor:
    """Sum 200 discounted rewards up from the last, one after the other."""
    rewards = tf.unstack(b.data(200, b.batch, b.width))
    total = rewards[-1]
    for reward in rewards[-2::-1]:
        total = reward + 0.99 * total
    b.fetch(total, "returns")
    return 0.1 * total


INPUTS: dict[str, Callable[[Builder], tf.Tensor]] = {
    made.__name__: made
    for made in (
        plain,
        shifted,
        pixels,
        counted,
        angles,
        outer_angles,
        whole,
        nearest,
        remainder,
        equality,
        one_hot,
        embedding,
        returns,
    )
}
