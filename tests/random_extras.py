"""More random layers: seldom used ops, dynamic shapes, state beside the values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tests.random_builder import Builder, Layer

Unary = Callable[[tf.Tensor], tf.Tensor]


def norms(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Normalize by a norm, or subtract a logarithm of sums of exponentials."""
    choices: tuple[Unary, ...] = (
        lambda t: tf.math.l2_normalize(t, axis=-1, epsilon=1e-2),
        lambda t: t - tf.reduce_logsumexp(t, axis=-1, keepdims=True),
        lambda t: tf.clip_by_norm(t, 2.0),
        lambda t: t / (tf.norm(t, axis=-1, keepdims=True) + 0.1),
        lambda t: t - tf.math.cumsum(t, axis=-1) * 0.1,
    )
    return b.rng.choice(choices)(x)


def segments(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Reduce rows by segment and gather them back."""
    ids = tf.constant([0, 1, 0, 2])
    reduce = b.rng.choice(
        (
            tf.math.unsorted_segment_sum,
            tf.math.unsorted_segment_max,
            tf.math.unsorted_segment_mean,
        )
    )
    return x - 0.5 * tf.gather(reduce(x, ids, 3), ids)


def scatter(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Write rows into zeros, or add them to the tensor itself."""
    where = tf.constant([[2], [0]])
    if b.rng.random() < 0.5:
        return x + tf.scatter_nd(where, x[:2], x.shape)
    return tf.tensor_scatter_nd_add(x, where, x[:2])


def masked(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Select rows by the ids, with a shape known only at run time."""
    assert b.ids is not None
    kept = tf.boolean_mask(x, tf.math.floormod(b.ids, 2) > 0)
    return x + tf.reduce_sum(tf.tanh(kept), axis=0, keepdims=True)


def largest(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Take the largest values, or sort them."""
    if b.rng.random() < 0.5:
        return tf.sort(x, axis=-1)
    return tf.math.top_k(x, k=2).values


def moving_average(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Keep a moving average beside, as batch normalization does."""
    average = b.raw_variable(x.shape[-1], scale=0.1)
    mean = tf.reduce_mean(x, axis=list(range(len(x.shape) - 1)))
    update = average.assign(0.9 * tf.convert_to_tensor(average) + 0.1 * mean)
    with tf.control_dependencies([update]):
        return x - mean


def through_python(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Pass through a Python function of float32 values."""
    y = tf.numpy_function(_half, [x], tf.float32)
    return x + tf.stop_gradient(tf.ensure_shape(y, x.shape))


def _half(value: np.ndarray) -> np.ndarray:
    # TensorFlow keeps only a weak reference, so it has to live in the module.
    return value * np.float32(0.5)


def asserted(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Check that values are finite."""
    return tf.debugging.check_numerics(x, "not finite")


def switch_case(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Choose one of three branches."""
    assert b.ids is not None
    w = b.variable(x.shape[-1], x.shape[-1])
    if len(x.shape) != 2:
        return tf.tensordot(x, w, axes=1)
    branches = (lambda: tf.matmul(x, w), lambda: tf.tanh(x), lambda: x * 0.5)
    return tf.ensure_shape(
        tf.switch_case(tf.math.floormod(b.ids[2], 3), branches), x.shape
    )


def gradient_of_gradient(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Penalize a gradient, as some adversarial losses do."""
    if len(x.shape) != 2:
        return x
    y = tf.tanh(tf.matmul(x, b.variable(x.shape[-1], 8)))
    slope = tf.gradients(y, x)[0]
    return x + 0.1 * slope


def bilinear(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Multiply pairs of features."""
    return tf.einsum("...i,ij,...j->...", x, b.variable(*[x.shape[-1]] * 2), x)[
        ..., None
    ] * tf.ones([x.shape[-1]])


def convolutions(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Strided, dilated, transposed, grouped or of size one."""
    size = x.shape[-1]
    kind = b.rng.randrange(4)
    if kind == 0:
        return tf.nn.conv2d(x, b.variable(1, 1, size, 4), 1, "SAME")
    if kind == 1:
        y = tf.nn.conv2d(x, b.variable(3, 3, size, 4), 1, "SAME", dilations=2)
        return tf.nn.relu(y)
    if kind == 2:
        shape = [x.shape[0], x.shape[1] * 2, x.shape[2] * 2, 2]
        y = tf.nn.conv2d_transpose(x, b.variable(2, 2, 2, size), shape, strides=2)
        return tf.nn.avg_pool2d(y, 2, 2, "SAME")
    y = tf.nn.conv2d(x, b.variable(3, 3, size, 3), 2, "SAME")
    return tf.image.resize(tf.nn.elu(y), x.shape[1:3], method="bilinear")


def convolution_1d(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Convolve a sequence."""
    y = tf.nn.conv1d(x, b.variable(2, x.shape[-1], 8), 1, "SAME")
    return tf.nn.bias_add(y, b.variable(8, scale=0.1))


ANY_RANK: tuple[Layer, ...] = (
    norms,
    segments,
    scatter,
    masked,
    largest,
    moving_average,
    through_python,
    asserted,
    switch_case,
    gradient_of_gradient,
    bilinear,
)
BY_RANK: dict[int, tuple[Layer, ...]] = {
    2: (),
    3: (convolution_1d,),
    4: (convolutions, convolutions),
}
