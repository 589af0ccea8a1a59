"""Random layers by the rank of what they take; values stay of magnitude one."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Layer = Callable[["Builder", tf.Tensor], tf.Tensor]
Unary = Callable[[tf.Tensor], tf.Tensor]


@dataclasses.dataclass
class Builder:
    """What a random program under construction shares.

    Attributes:
      rng: the only source of randomness.
      ref_variables: make v1 reference variables rather than resources.
      variables: made so far, in order.
      feeds: placeholder to value; empty when the program is a tf.function.
      ids: integer tensor [batch] with values up to 3000.
      targets: ops to run for their effect.
      uses_random: whether a random op was built.
      has_layers: whether there may be layers of Keras.
      layers: made so far, in order.
      trains: whether those layers are to train.
    """

    rng: random.Random
    ref_variables: bool = False
    variables: list[tf.Variable] = dataclasses.field(default_factory=list)
    feeds: dict[tf.Tensor, np.ndarray] = dataclasses.field(default_factory=dict)
    ids: tf.Tensor | None = None
    targets: list[tf.Operation] = dataclasses.field(default_factory=list)
    uses_random: bool = False
    has_layers: bool = False
    layers: list[keras.Layer] = dataclasses.field(default_factory=list)
    trains: bool = False

    def values(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        """Return normal float32 numbers."""
        normal = np.random.default_rng(self.rng.getrandbits(32)).normal(size=shape)
        return (normal * scale).astype(np.float32)

    def variable(self, *shape: int, scale: float | None = None) -> tf.Tensor:
        """Make a variable outside any loop and return its value."""
        return tf.convert_to_tensor(self.raw_variable(*shape, scale=scale))

    def raw_variable(self, *shape: int, scale: float | None = None) -> tf.Variable:
        """Make a variable outside any loop and function."""
        fan_in = float(np.prod(shape[:-1])) or 1.0
        initial = self.values(*shape, scale=scale or fan_in**-0.5)
        with tf.init_scope():
            if tf.executing_eagerly():
                made = outside(lambda: tf.Variable(initial))
            else:
                made = tf.compat.v1.Variable(
                    initial, use_resource=not self.ref_variables
                )
        self.variables.append(made)
        return made

    def layer(self, made: keras.Layer, *shapes: tf.TensorShape) -> keras.Layer:
        """Build a layer of Keras, for what has some shapes, outside any function."""
        outside(lambda: made.build(*shapes))
        for weight in made.trainable_variables:
            fan_in = float(np.prod(weight.shape[:-1])) or 1.0
            initial = self.values(*weight.shape, scale=fan_in**-0.5)
            outside(functools.partial(weight.assign, initial))
        self.layers.append(made)
        self.variables.extend(each.value for each in made.trainable_variables)
        return made


def outside(make: Callable[[], Any]) -> Any:
    """Return what is made in a thread of its own, which is in no function."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def activate(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Apply a random activation."""
    return b.rng.choice(
        (
            tf.nn.relu,
            tf.nn.relu6,
            tf.tanh,
            tf.sigmoid,
            tf.nn.gelu,
            tf.nn.elu,
            tf.nn.silu,
            tf.nn.softplus,
            tf.nn.leaky_relu,
            tf.identity,
        )
    )(x)


def dense(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Multiply by a weight, often with bias and activation (fused by the remapper)."""
    units = b.rng.choice((3, 8, 16))
    y = tf.matmul(x, b.variable(x.shape[-1], units))
    if b.rng.random() < 0.7:
        y = tf.nn.bias_add(y, b.variable(units, scale=0.1))
    return activate(b, y)


def shared_dense(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Read one variable by several products."""
    w = b.variable(x.shape[-1], x.shape[-1])
    y = tf.matmul(tf.tanh(tf.matmul(x, w)), w)
    return y + tf.matmul(x, w, transpose_b=True)


def layer_normalization(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Normalize the last axis, decomposed."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    gamma, beta = b.variable(x.shape[-1]), b.variable(x.shape[-1], scale=0.1)
    return (x - mean) * tf.math.rsqrt(variance + 1e-2) * gamma + beta


def batch_normalization(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Normalize over all axes but the last, decomposed."""
    mean, variance = tf.nn.moments(x, axes=list(range(len(x.shape) - 1)))
    scale = b.variable(x.shape[-1])
    return tf.nn.batch_normalization(x, mean, variance, None, scale, 1e-2)


def scaled_channels(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Scale and often shift each channel, as a normalization does in inference."""
    size = x.shape[-1]
    y = x * b.variable(size, scale=1.0)
    return y + b.variable(size, scale=0.1) if b.rng.random() < 0.7 else y


def softmax(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Softmax of the last axis, scaled back to magnitude one."""
    y = tf.nn.softmax(x) if b.rng.random() < 0.5 else tf.nn.log_softmax(x)
    return y * 2.0


def elementwise(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Apply a chain of arithmetic, clear and infer ops."""
    choices: tuple[Unary, ...] = (
        lambda t: t * 0.5 + 0.25,
        lambda t: tf.maximum(t, -0.5),
        lambda t: tf.exp(-tf.square(t)),
        lambda t: tf.math.log1p(tf.abs(t)),
        lambda t: t / (1.0 + tf.abs(t)),
        lambda t: tf.sqrt(tf.abs(t) + 0.1),
        lambda t: tf.clip_by_value(t, -1.0, 1.0),
        lambda t: tf.where(t > 100.0, t, -t),
        lambda t: tf.pow(tf.abs(t) + 0.5, 1.5),
        lambda t: tf.stop_gradient(t) * t,
        lambda t: tf.sin(t) - tf.cos(t),
        lambda t: tf.math.erf(t),
    )
    for _ in range(b.rng.randint(1, 3)):
        x = b.rng.choice(choices)(x)
    return x


def reduction(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Reduce an axis and broadcast back."""
    reduce = b.rng.choice((tf.reduce_mean, tf.reduce_sum, tf.reduce_max))
    axis = b.rng.randrange(len(x.shape))
    return x - 0.1 * reduce(x, axis=axis, keepdims=True)


def movement(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Move data: concat, split, stack, pad, reverse, tile, gather, transpose twice."""
    choices: tuple[Unary, ...] = (
        lambda t: tf.concat([t, tf.tanh(t)], axis=-1),
        lambda t: tf.add_n(tf.unstack(tf.stack([t, -0.5 * t, tf.tanh(t)]), axis=0)),
        lambda t: tf.reverse(t, axis=[0]),
        lambda t: tf.pad(t, [[0, 0]] * (len(t.shape) - 1) + [[1, 0]]),
        lambda t: tf.gather(t, [0, 1, 1], axis=-1),
        lambda t: tf.reshape(tf.reshape(t, [-1]), t.shape),
        lambda t: tf.tile(t, [1] * (len(t.shape) - 1) + [2]),
        lambda t: t[..., ::-1],
        lambda t: tf.add_n(tf.identity_n([t, tf.tanh(t)])),
        lambda t: tf.expand_dims(t, 0)[0],
        lambda t: tf.roll(t, 1, axis=0),
    )
    return b.rng.choice(choices)(x)


def low_island(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Compute something in the user's own float16 or bfloat16."""
    low = tf.cast(x, b.rng.choice((tf.float16, tf.bfloat16)))
    y = tf.tanh(low) * 0.5
    if len(x.shape) == 2 and b.rng.random() < 0.5:
        y = tf.matmul(y, tf.cast(b.variable(x.shape[-1], 8), y.dtype))
    return tf.cast(y, tf.float32)


def double_part(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Compute something in float64."""
    double = tf.cast(x, tf.float64)
    if len(x.shape) == 2:
        double = tf.matmul(double, tf.cast(b.variable(x.shape[-1], 4), tf.float64))
    return tf.cast(tf.tanh(double), tf.float32)


def integer_part(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Scale by integers that 16-bit floats cannot hold, compared exactly."""
    assert b.ids is not None
    exact = tf.cast(b.ids, tf.float32)
    odd = tf.cast(tf.math.floormod(exact, 2.0) > 0.5, tf.float32)
    return x * (1.0 + 0.5 * tf.reduce_mean(odd))


def embedding(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Look rows up in a table by ids beyond 2048, and add them in."""
    assert b.ids is not None
    table = b.raw_variable(3000, 4, scale=1.0)
    rows = tf.nn.embedding_lookup(table, b.ids)
    return x * (1.0 + 0.1 * tf.reduce_mean(rows)) + 0.1 * tf.reduce_sum(rows[0])


def dropout(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Drop some values, stateless or by a seeded stateful op."""
    b.uses_random = True
    if b.rng.random() < 0.5:
        return tf.nn.experimental.stateless_dropout(x, 0.25, seed=[1, 2])
    return tf.nn.dropout(x, 0.25, seed=b.rng.randrange(1, 1000))


def einsum_2d(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Multiply by einsum."""
    return tf.einsum("bf,fg->bg", x, b.variable(x.shape[-1], 8))


def to_sequence(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Make a short sequence of it."""
    return tf.tanh(tf.stack([x, x * 0.5, -x], axis=1))


def to_image(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Make a 6 by 6 image of it."""
    y = tf.matmul(x, b.variable(x.shape[-1], 6 * 6 * 2))
    return tf.reshape(y, [-1, 6, 6, 2])


def attention(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Attend with a causal mask of -1e9."""
    size = x.shape[-1]
    q, k, v = (tf.einsum("btf,fg->btg", x, b.variable(size, 8)) for _ in range(3))
    # As Keras writes them where it drops some.
    scores = tf.transpose(tf.matmul(k, q, transpose_b=True), [0, 2, 1]) * 8**-0.5
    allowed = tf.linalg.band_part(tf.ones([x.shape[1]] * 2), -1, 0)
    if b.rng.random() < 0.5:
        scores += (1.0 - allowed) * -1e9
    else:
        scores = tf.where(allowed > 0.0, scores, -np.inf)
    return tf.matmul(tf.nn.softmax(scores), v)


def dense_3d(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Multiply every position by one weight."""
    return activate(b, tf.tensordot(x, b.variable(x.shape[-1], 8), axes=1))


def batch_product(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Multiply batches of matrices and go back to the same rank."""
    return tf.matmul(x, tf.transpose(x, [0, 2, 1])) * x.shape[-1] ** -0.5


def pool_sequence(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Average over positions."""
    return tf.reduce_mean(x, axis=1)


def flatten(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Flatten all but the batch."""
    return tf.reshape(x, [x.shape[0], -1])


def convolution(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Convolve, often with bias and activation."""
    channels = b.rng.choice((2, 4))
    weight = b.variable(3, 3, x.shape[-1], channels)
    y = tf.nn.conv2d(x, weight, strides=1, padding=b.rng.choice(("SAME", "VALID")))
    if min(y.shape[1:3]) < 3:
        y = tf.pad(y, [[0, 0], [1, 1], [1, 1], [0, 0]])
    if b.rng.random() < 0.5:
        y = tf.nn.bias_add(y, b.variable(channels, scale=0.1))
    return activate(b, y)


def depthwise(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Convolve each channel by itself."""
    weight = b.variable(3, 3, x.shape[-1], 1, scale=0.3)
    return tf.nn.depthwise_conv2d(x, weight, [1, 1, 1, 1], "SAME")


def fused_batch_normalization(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Normalize by FusedBatchNormV3, training or inference."""
    size = x.shape[-1]
    scale, offset = b.variable(size, scale=1.0), b.variable(size, scale=0.1)
    if b.rng.random() < 0.7:
        return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=1e-2)[0]
    mean = tf.constant(b.values(size, scale=0.1))
    variance = tf.constant(np.abs(b.values(size)) + 0.5)
    return tf.compat.v1.nn.fused_batch_norm(
        x, scale, offset, mean, variance, is_training=False
    )[0]


def pooling(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Pool a 2 by 2 window."""
    pool = b.rng.choice((tf.nn.max_pool2d, tf.nn.avg_pool2d))
    return pool(x, ksize=2, strides=1, padding="SAME")


def pool_image(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Average over both image axes."""
    return tf.reduce_mean(x, axis=[1, 2])


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
    *(elementwise, elementwise, reduction, movement, movement, layer_normalization),
    *(batch_normalization, scaled_channels, softmax, low_island, double_part),
    *(integer_part, embedding, dropout),
)
BY_RANK: dict[int, tuple[Layer, ...]] = {
    2: (dense, dense, shared_dense, einsum_2d, to_sequence, to_image),
    3: (attention, dense_3d, batch_product, pool_sequence, flatten),
    4: (
        *(convolution, convolution, depthwise, fused_batch_normalization, pooling),
        *(pool_image, flatten),
    ),
}
# Seldom used ops, dynamic shapes, state beside the values.
SELDOM: tuple[Layer, ...] = (
    *(norms, segments, scatter, masked, largest, moving_average, through_python),
    *(asserted, switch_case, gradient_of_gradient, bilinear),
)
SELDOM_BY_RANK: dict[int, tuple[Layer, ...]] = {
    2: (),
    3: (convolution_1d,),
    4: (convolutions, convolutions),
}
