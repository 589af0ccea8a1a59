"""Programs of convolutions: classifiers, segmentation, detection, volumes."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf
from keras import layers

from benchmarks.training_graphs.convolutional import convolve, residual_loss
from benchmarks.training_graphs.words import (
    Step,
    Tensor,
    adam,
    dense,
    floats,
    integers,
    momentum,
    training_step,
    variable,
    word_loss,
)
from tests.golden_programs.tracing import (
    floats_spec,
    integers_spec,
    keras_inference,
    keras_step,
    outputs_in_graph,
)

_BATCH = 64
_CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def convnet() -> Step:
    """Return a step of a small Keras network with batch normalization under Adam."""
    model = keras.Sequential(
        [
            keras.Input((64, 64, 3)),
            layers.Conv2D(64, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(128, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    x, y = floats_spec(256, 64, 64, 3), integers_spec(256)
    return keras_step(model, _CROSS_ENTROPY, keras.optimizers.Adam(1e-3), x, y)


def convnet_inference() -> Step:
    """Return the inference of a Keras network, whose scales go to its weights."""
    inputs = keras.Input((64, 64, 64))
    x = inputs
    for width in (128, 256):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = _normalized(x, activation=keras.activations.relu)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(1000)(x))
    return keras_inference(model, floats_spec(256, 64, 64, 64))


def resnet() -> Step:
    """Return a step of two bottlenecks of ResNet, with weight decay."""
    return training_step(lambda: residual_loss(_BATCH, (1, 1), 1), momentum)


def resnext() -> Step:
    """Return a step of a bottleneck with 32 groups of channels."""
    return training_step(lambda: residual_loss(_BATCH, (1,), 32), momentum)


def _normalized(
    x: Tensor, *, activation: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    x = layers.BatchNormalization()(x)
    return x if activation is None else activation(x)


def _inverted(
    x: Tensor, width: int, activation: Callable[[Tensor], Tensor], *, squeezed: bool
) -> Tensor:
    """Return a block of MobileNet, or EfficientNet's with squeeze and excitation."""
    given, wide = x, 4 * x.shape[-1]
    x = layers.Conv2D(wide, 1, use_bias=False)(x)
    x = _normalized(x, activation=activation)
    x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = _normalized(x, activation=activation)
    if squeezed:
        y = layers.GlobalAveragePooling2D(keepdims=True)(x)
        y = layers.Conv2D(wide // 16, 1, activation=activation)(y)
        x = layers.Multiply()([x, layers.Conv2D(wide, 1, activation="sigmoid")(y)])
    x = _normalized(layers.Conv2D(width, 1, use_bias=False)(x))
    return layers.Add()([x, given]) if width == given.shape[-1] else x


def _image_network(block: Callable[[Tensor], Tensor], width: int) -> keras.Model:
    inputs = keras.Input((64, 64, width))
    x = layers.GlobalAveragePooling2D()(block(inputs))
    return keras.Model(inputs, layers.Dense(1000)(x))


def mobilenet() -> Step:
    """Return a step of an inverted bottleneck with ReLU6."""
    relu6 = keras.activations.relu6
    model = _image_network(lambda x: _inverted(x, 64, relu6, squeezed=False), 64)
    x, y = floats_spec(_BATCH, 64, 64, 64), integers_spec(_BATCH)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    return keras_step(model, _CROSS_ENTROPY, optimizer, x, y)


def efficientnet() -> Step:
    """Return a step of a block with swish, squeeze and excitation under RMSprop."""
    silu = keras.activations.silu
    model = _image_network(lambda x: _inverted(x, 64, silu, squeezed=True), 64)
    x, y = floats_spec(_BATCH, 64, 64, 64), integers_spec(_BATCH)
    return keras_step(model, _CROSS_ENTROPY, keras.optimizers.RMSprop(1e-3), x, y)


def mobilenet_inference() -> Step:
    """Return the inference of depthwise and pointwise convolutions with biases."""

    def make() -> Tensor:
        x = floats(_BATCH, 112, 112, 32)
        for width in (64, 128):
            kernel = variable("depthwise", 3, 3, x.shape[-1], 1)
            x = tf.nn.depthwise_conv2d(x, kernel, (1, 1, 1, 1), "SAME")
            x = tf.nn.relu6(x + variable("bias", x.shape[-1]))
            bias = variable("bias", width)
            x = tf.nn.relu6(tf.nn.bias_add(convolve(x, width, 1), bias))
        return tf.nn.softmax(dense(tf.reduce_mean(x, (1, 2)), 1000))

    return outputs_in_graph(make)


def _twice(x: Tensor, filters: int) -> Tensor:
    for _ in range(2):
        bias = variable("bias", filters)
        x = tf.nn.relu(tf.nn.bias_add(convolve(x, filters, 3), bias))
    return x


def u_net() -> Step:
    """Return a step of a U-Net of two levels with a transposed convolution."""

    def loss() -> Tensor:
        top = _twice(floats(16, 128, 128, 32), 64)
        low = _twice(tf.nn.max_pool2d(top, 2, 2, "SAME"), 128)
        kernel = variable("kernel", 2, 2, 64, 128)
        up = tf.nn.conv2d_transpose(low, kernel, top.shape, 2, "SAME")
        logits = convolve(_twice(tf.concat((top, up), -1), 64), 1, 1)
        labels = floats(*logits.shape)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
        chances = tf.sigmoid(logits)
        dice = 2.0 * tf.reduce_sum(chances * labels) / tf.reduce_sum(chances + labels)
        return tf.reduce_mean(entropy) + 1.0 - dice

    return training_step(loss, adam)


def volumes() -> Step:
    """Return a step of convolutions in three dimensions."""

    def loss() -> Tensor:
        x = floats(8, 32, 64, 64, 16)
        for width in (32, 64):
            kernel = variable("kernel", 3, 3, 3, x.shape[-1], width)
            x = tf.nn.conv3d(x, kernel, (1, 1, 1, 1, 1), "SAME")
            x = tf.nn.relu(tf.nn.bias_add(x, variable("bias", width)))
        x = tf.nn.max_pool3d(x, 2, 2, "SAME")
        return word_loss(dense(tf.reduce_mean(x, (1, 2, 3)), 10), integers(8))

    return training_step(loss, momentum)


def group_norm() -> Step:
    """Return a step of a Keras network with group normalization."""
    inputs = keras.Input((32, 32, 64))
    x = layers.Conv2D(128, 3, padding="same")(inputs)
    x = layers.GroupNormalization(8)(x)
    x = layers.Conv2D(128, 3, strides=2, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))
    x, y = floats_spec(256, 32, 32, 64), integers_spec(256)
    optimizer = keras.optimizers.SGD(0.1, nesterov=True, momentum=0.9)
    return keras_step(model, _CROSS_ENTROPY, optimizer, x, y)


def _focal(logits: Tensor, labels: Tensor) -> Tensor:
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    chances = tf.sigmoid(logits)
    wrong = labels * (1.0 - chances) + (1.0 - labels) * chances
    return tf.reduce_sum(tf.pow(wrong, 2.0) * entropy)


def detector() -> Step:
    """Return a step of heads on two levels, with a focal and a Huber loss."""

    def loss() -> Tensor:
        x = tf.nn.relu(convolve(floats(16, 128, 128, 32), 128, 3, 2))
        total = tf.constant(0.0)
        for stride in (1, 2):
            x = tf.nn.relu(convolve(x, 128, 3, stride))
            logits, boxes = convolve(x, 90, 3), convolve(x, 4, 3)
            total += _focal(logits, floats(*logits.shape))
            error = tf.abs(boxes - floats(*boxes.shape))
            bent = tf.where(error < 1.0, 0.5 * error * error, error - 0.5)
            total += tf.reduce_sum(bent)
        return total

    return training_step(loss, momentum)


def suppression() -> Step:
    """Return the inference of a detector, which suppresses what is not a maximum."""

    def make() -> Tensor:
        x = tf.nn.relu(convolve(floats(8, 128, 128, 64), 128, 3, 2))
        boxes = tf.reshape(convolve(x, 4, 3), (8, -1, 1, 4))
        scores = tf.reshape(tf.sigmoid(convolve(x, 20, 3)), (8, -1, 20))
        return tf.image.combined_non_max_suppression(boxes, scores, 10, 100)[0]

    return outputs_in_graph(make)


def preprocessing() -> Step:
    """Return the inference on pixels that are resized and standardized first."""

    def make() -> Tensor:
        pixels = tf.compat.v1.placeholder(tf.uint8, (_BATCH, 256, 256, 3))
        x = tf.image.resize(tf.cast(pixels, tf.float32) / 255.0, (224, 224))
        x = tf.image.per_image_standardization(tf.image.adjust_contrast(x, 1.1))
        x = tf.nn.relu(convolve(x, 64, 7, 2))
        x = tf.nn.relu(convolve(x, 128, 3, 2))
        return tf.argmax(dense(tf.reduce_mean(x, (1, 2)), 1000), -1)

    return outputs_in_graph(make)


def text_cnn() -> Step:
    """Return a step of convolutions of three widths over words."""

    def loss() -> Tensor:
        words = tf.gather(variable("words", 30000, 256), integers(256, 128))
        found = []
        for size in (3, 4, 5):
            kernel = variable("kernel", size, 256, 128)
            y = tf.nn.conv1d(words, kernel, 1, "VALID") + variable("bias", 128)
            found.append(tf.reduce_max(tf.nn.relu(y), 1))
        hidden = tf.nn.dropout(tf.concat(found, -1), 0.5, seed=1)
        return word_loss(dense(hidden, 20), integers(256))

    return training_step(loss, adam)


def speech() -> Step:
    """Return a step with the loss of connectionist temporal classification."""

    def loss() -> Tensor:
        x = tf.nn.relu(convolve(floats(16, 200, 80, 1), 32, 3, 2))
        x = tf.reshape(x, (16, x.shape[1], -1))
        logits = dense(dense(x, 1024, tf.nn.relu), 32)
        losses = tf.nn.ctc_loss(
            labels=integers(16, 20),
            logits=logits,
            label_length=integers(16),
            logit_length=integers(16),
            logits_time_major=False,
        )
        return tf.reduce_mean(losses)

    return training_step(loss, adam)
