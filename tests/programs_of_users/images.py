"""Images: networks of convolutions, segmentation, boxes of detectors."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tests.programs_of_users.building import (
    UserProgram,
    cross_entropy,
    ids,
    normal,
    trained,
    uniform,
    weight,
)

_SIZE, _CHANNELS = 16, 16
_L = keras.layers


def _classified(net: Any, channels: int = _CHANNELS) -> UserProgram:
    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        logits = net(x, training=True)
        return cross_entropy(y, logits)

    return trained(loss, normal(2, _SIZE, _SIZE, channels), ids(2, below=10))


def _ended(x: Any, given: Any) -> keras.Model:
    return keras.Model(given, _L.Dense(10)(_L.GlobalAveragePooling2D()(x)))


def residual_network() -> UserProgram:
    """Return a block with batch normalization and a sum."""
    given = keras.Input((_SIZE, _SIZE, _CHANNELS))
    x = _L.Conv2D(_CHANNELS, 3, padding="same", use_bias=False)(given)
    x = _L.ReLU()(_L.BatchNormalization()(x))
    x = _L.BatchNormalization()(_L.Conv2D(_CHANNELS, 3, padding="same")(x))
    return _classified(_ended(_L.ReLU()(x + given), given))


def mobile_network() -> UserProgram:
    """Return an inverted bottleneck with squeeze and excitation and hard swish."""
    given = keras.Input((_SIZE, _SIZE, _CHANNELS))
    x = _L.Activation("hard_silu")(_L.Conv2D(32, 1)(given))
    x = _L.DepthwiseConv2D(5, strides=2, padding="same")(x)
    seen = _L.GlobalAveragePooling2D(keepdims=True)(x)
    gate = _L.Conv2D(32, 1, activation="hard_sigmoid")(_L.Conv2D(8, 1)(seen))
    return _classified(_ended(_L.Conv2D(_CHANNELS, 1)(x * gate), given))


def patches() -> UserProgram:
    """Return patches of 4 by 4 as words, with learned positions."""
    given = keras.Input((_SIZE, _SIZE, _CHANNELS))
    x = _L.Reshape((16, 32))(_L.Conv2D(32, 4, strides=4)(given))
    x = x + _L.Embedding(16, 32)(tf.range(16))
    x = x + _L.MultiHeadAttention(4, 8)(_L.LayerNormalization()(x), x)
    pooled = _L.GlobalAveragePooling1D()(x)
    return _classified(keras.Model(given, _L.Dense(10)(pooled)))


def bytes_as_pixels() -> UserProgram:
    """Return pixels from 0 to 255, less means and by deviations."""
    net = keras.Sequential(
        [
            _L.Rescaling(1 / 58.4, offset=-2.1),
            _L.Conv2D(_CHANNELS, 3, strides=2),
            _L.Flatten(),
            _L.Dense(1),
        ]
    )

    def loss(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean((net(tf.cast(x, tf.float32)) - 1.0) ** 2)

    return trained(
        loss, lambda rng: rng.integers(0, 256, (2, _SIZE, _SIZE, 3)).astype("uint8")
    )


def encoder_and_decoder() -> UserProgram:
    """Return a U-Net with a transposed convolution and a concatenation."""
    given = keras.Input((_SIZE, _SIZE, _CHANNELS))
    high = _L.Conv2D(16, 3, padding="same", activation="relu")(given)
    low = _L.Conv2D(32, 3, padding="same", activation="elu")(_L.MaxPool2D()(high))
    up = _L.Conv2DTranspose(16, 2, strides=2)(low)
    net = keras.Model(given, _L.Conv2D(4, 1)(_L.Concatenate()([up, high])))

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return cross_entropy(y, net(x))

    return trained(
        loss, normal(2, _SIZE, _SIZE, _CHANNELS), ids(2, _SIZE, _SIZE, below=4)
    )


def super_resolution() -> UserProgram:
    """Return pixels out of channels, and a loss of total variation."""
    net = keras.Sequential([_L.Conv2D(32, 3, padding="same", activation="relu")])
    last = _L.Conv2D(12, 3, padding="same")

    def loss(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        image = tf.nn.depth_to_space(last(net(x)), 2)
        error = tf.sqrt((image - y) ** 2 + 1e-6)
        return tf.reduce_mean(error) + 1e-4 * tf.reduce_sum(
            tf.image.total_variation(image)
        )

    return trained(
        loss, uniform(2, _SIZE, _SIZE, 3), uniform(2, 2 * _SIZE, 2 * _SIZE, 3)
    )


def video() -> UserProgram:
    """Return a convolution in three dimensions, pooled over time."""
    net = keras.Sequential(
        [
            _L.Conv3D(16, 3, padding="same", activation="relu"),
            _L.AveragePooling3D((2, 1, 1)),
            _L.GlobalMaxPooling3D(),
            _L.Dense(1),
        ]
    )
    return trained(
        lambda x: tf.reduce_mean((net(x) - 1.0) ** 2), normal(2, 4, 8, 8, 16)
    )


def boxes_of_anchors() -> UserProgram:
    """Return boxes of around 600 pixels out of anchors, and their overlap as loss."""
    net = weight(_CHANNELS, 4, scale=0.05)

    def loss(x: tf.Tensor, anchors: tf.Tensor, truth: tf.Tensor) -> tf.Tensor:
        moved = x @ net
        center = anchors[:, :2] + moved[:, :2] * anchors[:, 2:]
        size = anchors[:, 2:] * tf.exp(moved[:, 2:])
        low, high = center - size / 2, center + size / 2
        lows, highs = truth[:, :2] - truth[:, 2:] / 2, truth[:, :2] + truth[:, 2:] / 2
        common = tf.reduce_prod(
            tf.nn.relu(tf.minimum(high, highs) - tf.maximum(low, lows)), -1
        )
        union = tf.reduce_prod(size, -1) + tf.reduce_prod(truth[:, 2:], -1) - common
        return 1 - tf.reduce_mean(common / (union + 1e-7))

    boxes = uniform(_SIZE, 4, low=300.0, high=900.0)
    return trained(loss, normal(_SIZE, _CHANNELS), boxes, boxes)


def grid_of_a_detector() -> UserProgram:
    """Return YOLO's boxes: sigmoids beside cells, and which of them are kept."""
    net = weight(_CHANNELS, 5)

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        raw = tf.reshape(
            tf.matmul(tf.reshape(x, (-1, _CHANNELS)), net), (-1, 13, 13, 5)
        )
        columns, rows = tf.meshgrid(tf.range(13.0), tf.range(13.0))
        cells = tf.stack((columns, rows), -1)
        center = (tf.sigmoid(raw[..., :2]) + cells) * 32.0
        size = tf.exp(raw[..., 2:4]) * 100.0
        boxes = tf.reshape(
            tf.concat((center - size / 2, center + size / 2), -1), (-1, 4)
        )
        scores = tf.reshape(tf.sigmoid(raw[..., 4]), (-1,))
        kept = tf.image.non_max_suppression(boxes, scores, 5, 0.5)
        return boxes, tf.gather(scores, kept)

    return UserProgram(step, (normal(1, 13, 13, _CHANNELS),))
