"""A detector in the style of SSD: two feature maps, multi-box loss, hard negatives."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from benchmarks.detector_scenes import (
    CANVAS,
    CLASSES,
    MAPS,
    Scenes,
    boxes_from_offsets,
    overlaps,
)

# The loss is a mean over the default boxes of SSD512 in a global batch of 2,048, as
# each of many replicas computes it, so that gradients are as small as they are there.
LOSSES_IN_MEAN = 24_564 * 2_048
_NEGATIVES_PER_POSITIVE = 3.0
_DETECTED_ABOVE = 0.5
_WELL_PLACED = 0.5


def build() -> keras.Model:
    """Return the network: [batch, boxes, classes + 4] for each image."""
    image = keras.Input((CANVAS, CANVAS, 1))
    x = _convolved(image, 16, strides=2)
    x = _convolved(x, 24)
    x = _convolved(x, 32, strides=2)
    fine = _convolved(x, 32)
    coarse = _convolved(_convolved(fine, 48, strides=2), 48)
    heads = [
        _head(features, len(sides))
        for features, (_, sides) in zip((fine, coarse), MAPS, strict=True)
    ]
    return keras.Model(image, layers.Concatenate(axis=1)(heads))


def multibox_loss(
    answers: tf.Tensor, classes: tf.Tensor, offsets: tf.Tensor
) -> tf.Tensor:
    """Return the loss; of the negatives only the hardest count.

    Args:
      answers: [batch, boxes, classes + 4].
      classes: wanted, [batch, boxes].
      offsets: wanted, [batch, boxes, 4].
    """
    wrong = tf.nn.sparse_softmax_cross_entropy_with_logits(
        classes, answers[..., :CLASSES]
    )
    positive = tf.cast(classes > 0, tf.float32)
    negative = tf.stop_gradient(wrong) * (1.0 - positive)
    rank = tf.argsort(tf.argsort(negative, direction="DESCENDING"))
    kept = _NEGATIVES_PER_POSITIVE * tf.reduce_sum(positive, axis=1, keepdims=True)
    counts = tf.maximum(positive, tf.cast(tf.cast(rank, tf.float32) < kept, tf.float32))
    distance = answers[..., CLASSES:] - offsets
    near = tf.minimum(tf.abs(distance), 1.0)
    misplaced = tf.reduce_sum(near * (tf.abs(distance) - 0.5 * near), axis=-1)
    return tf.reduce_sum(wrong * counts + misplaced * positive) / LOSSES_IN_MEAN


def quality(answers: np.ndarray, scenes: Scenes) -> float:
    """Return the mean of precision and recall over all digits of the scenes.

    A digit is found by a well-placed box of its class; of boxes that overlap, the
    surest counts.
    """
    logits = answers[..., :CLASSES]
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    boxes = boxes_from_offsets(answers[..., CLASSES:])
    found = told = there = 0
    for chance, box, wanted, labels in zip(
        chances, boxes, scenes.boxes, scenes.labels, strict=True
    ):
        kept = _surest(chance[:, 1:].max(axis=1), box)
        classes = chance[kept, 1:].argmax(axis=1) + 1
        right = overlaps(box[kept], wanted) > _WELL_PLACED
        right &= classes[:, None] == labels[None]
        found += int(right.any(axis=0).sum())
        told, there = told + len(kept), there + len(labels)
    return 0.5 * (found / max(told, 1) + found / there)


def _surest(chances: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Return what is left of boxes once those that overlap surer ones are gone."""
    kept: list[int] = []
    for index in np.argsort(-chances):
        if chances[index] < _DETECTED_ABOVE:
            break
        if not kept or overlaps(boxes[[index]], boxes[kept]).max() < _WELL_PLACED:
            kept.append(int(index))
    return np.array(kept, np.int64)


def _convolved(x: tf.Tensor, filters: int, strides: int = 1) -> tf.Tensor:
    return layers.Conv2D(filters, 3, strides, "same", activation="relu")(x)


def _head(features: tf.Tensor, boxes: int) -> tf.Tensor:
    answers = layers.Conv2D(boxes * (CLASSES + 4), 3, padding="same")(features)
    return layers.Reshape((-1, CLASSES + 4))(answers)
