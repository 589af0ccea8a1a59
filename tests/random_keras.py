"""Random layers of Keras 3, as the fusions look for them.

They are built outside of what is traced.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tests.random_layers import Builder, Layer, attention, to_sequence

# As large as fused steps of optimizers take them.
_LARGE = 2**15
_ACTIVATIONS = ("relu", "relu6", "elu", "leaky_relu", "gelu", "tanh", None)
# With less than that, normalizing magnifies what rounding leaves of constant values.
_EPSILON = 1e-2


def dense(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Multiply the last axis, add a bias and activate."""
    layer = b.layer(
        keras.layers.Dense(
            8, b.rng.choice(_ACTIVATIONS), use_bias=b.rng.random() < 0.8
        ),
        x.shape,
    )
    return layer(x)


def gelu(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Apply GELU by the error function or by tanh."""
    return keras.activations.gelu(x, approximate=b.rng.random() < 0.5)


def wide(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Widen and narrow again, by weights for which an optimizer has fused steps."""
    units = -(-_LARGE // x.shape[-1])
    y = b.layer(keras.layers.Dense(units, "gelu"), x.shape)(x)
    return b.layer(keras.layers.Dense(8), y.shape)(y)


def layer_normalization(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Normalize the last axis, with its mean or, where Keras has that, without."""
    layers, usual = keras.layers, keras.layers.LayerNormalization
    other = getattr(layers, "RMSNormalization", usual)
    of = b.rng.choice((usual, usual, other))
    return b.layer(of(epsilon=_EPSILON), x.shape)(x)


def batch_normalization(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Normalize by the batch where the program trains, else by moving averages."""
    if len(x.shape) == 4 and x.shape[-1] % 4:
        # What TensorFlow's remapper makes of these runs, but cannot be imported.
        return x
    layer = b.layer(
        keras.layers.BatchNormalization(momentum=0.5, epsilon=_EPSILON),
        x.shape,
    )
    return layer(x, training=b.trains)


def normalized_convolution(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Convolve, normalize by channel and often activate."""
    of, *sizes = b.rng.choice(
        ((keras.layers.Conv2D, 4, 3), (keras.layers.DepthwiseConv2D, 3))
    )
    biased = b.rng.random() < 0.5
    layer = b.layer(of(*sizes, padding="same", use_bias=biased), x.shape)
    y = batch_normalization(b, layer(x))
    return keras.activations.relu(y) if b.rng.random() < 0.5 else y


def image(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Make a 6 by 6 image and convolve it."""
    y = b.layer(keras.layers.Dense(6 * 6 * 4), x.shape)(x)
    return normalized_convolution(b, tf.reshape(y, [-1, 6, 6, 4]))


def embedding(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Look rows up in a table, and add them in."""
    assert b.ids is not None
    layer = b.layer(keras.layers.Embedding(3000, 16), b.ids.shape)
    rows = layer(b.ids)
    return x * (1.0 + 0.1 * tf.reduce_mean(rows)) + 0.1 * tf.reduce_sum(rows[0])


def masked_attention(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Attend to what came before, and to some rows alone."""
    assert b.ids is not None
    layer = b.layer(keras.layers.MultiHeadAttention(2, 4), x.shape, x.shape)
    rows = tf.math.floormod(b.ids, 2) > 0
    mask = None if b.rng.random() < 0.5 else rows[:, None, None]
    return layer(x, x, attention_mask=mask, use_causal_mask=True)


def masked_softmax(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Softmax of what a causal mask lets through."""
    scores = tf.matmul(x, x, transpose_b=True) * x.shape[-1] ** -0.5
    mask = tf.linalg.band_part(tf.ones(scores.shape, tf.bool), -1, 0)
    return tf.matmul(keras.layers.Softmax()(scores, mask), x)


ANY_RANK: tuple[Layer, ...] = (
    *(dense, gelu, wide, layer_normalization, layer_normalization),
    *(layer_normalization, batch_normalization, embedding),
)
BY_RANK: dict[int, tuple[Layer, ...]] = {
    2: (to_sequence, to_sequence, image, image, image),
    3: (attention, masked_attention, masked_softmax),
    4: (normalized_convolution,) * 3,
}
