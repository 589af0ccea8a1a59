"""SSD320 on ResNet-50 with a feature pyramid, as NVIDIA's collection trains it.

Batch normalization is frozen, the heads share their weights over five levels of the
pyramid, and the loss is focal (Lin et al., arXiv:1708.02002). Which anchor is to find
which box is computed in the step too, image by image.
"""

from functools import partial

import tensorflow as tf

from benchmarks.training_graphs.convolutional import convolve
from benchmarks.training_graphs.words import (
    Step,
    Tensor,
    floats,
    momentum,
    training_step,
    v1,
    variable,
)

_CLASSES, _SHAPES, _DEPTH = 90, 6, 256
_BOXES = 100
_WEIGHT_DECAY = 4e-4


def _normalize(x: Tensor) -> Tensor:
    channels = x.shape[-1]
    scale, offset = variable("gamma", channels), variable("beta", channels)
    mean, spread = variable("mean", channels), variable("variance", channels)
    return v1.nn.fused_batch_norm(x, scale, offset, mean, spread, is_training=False)[0]


def _bottleneck(x: Tensor, width: int, stride: int) -> Tensor:
    y = tf.nn.relu(_normalize(convolve(x, width, 1)))
    y = tf.nn.relu(_normalize(convolve(y, width, 3, stride)))
    y = _normalize(convolve(y, 4 * width, 1))
    if x.shape[-1] != 4 * width:
        x = _normalize(convolve(x, 4 * width, 1, stride))
    elif stride > 1:
        x = tf.nn.max_pool2d(x, 1, stride, "SAME")
    return tf.nn.relu(x + y)


def _backbone(x: Tensor) -> list[Tensor]:
    """Return the maps at strides of 8, 16 and 32."""
    x = tf.nn.relu(_normalize(convolve(x, 64, 7, 2)))
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    maps = []
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _bottleneck(x, 64 << stage, stride)
        maps.append(x)
    return maps[1:]


def _pyramid(maps: list[Tensor]) -> list[Tensor]:
    """Return five levels of one depth, from the largest map to the smallest."""
    top = convolve(maps[-1], _DEPTH, 1)
    levels = [top]
    for beside in reversed(maps[:-1]):
        size = beside.shape[1:3]
        above = v1.image.resize_nearest_neighbor(levels[0], size)
        levels.insert(0, convolve(beside, _DEPTH, 1) + above)
    smooth = [_block(level, _DEPTH, 1) for level in levels[:-1]]
    for _ in range(2):
        top = _block(top, _DEPTH, 2)
        levels.append(top)
    return [*smooth, *levels[len(smooth) :]]


def _block(x: Tensor, filters: int, stride: int) -> Tensor:
    return tf.nn.relu6(_normalize(convolve(x, filters, 3, stride)))


class _Head:
    """Four convolutions and a last one, whose kernels serve every level."""

    def __init__(self, outputs: int) -> None:
        self._kernels = [variable("kernel", 3, 3, _DEPTH, _DEPTH) for _ in range(4)]
        self._last = variable("kernel", 3, 3, _DEPTH, _SHAPES * outputs)
        self._bias = variable("bias", _SHAPES * outputs)
        self._outputs = outputs

    def __call__(self, x: Tensor) -> Tensor:
        for kernel in self._kernels:
            x = tf.nn.relu6(_normalize(tf.nn.conv2d(x, kernel, 1, "SAME")))
        y = tf.nn.bias_add(tf.nn.conv2d(x, self._last, 1, "SAME"), self._bias)
        return tf.reshape(y, (x.shape[0], -1, self._outputs))


def _overlaps(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Return the intersections over unions of boxes [n, 4] with anchors [m, 4]."""
    low, high = (tf.split(each, 2, -1) for each in (boxes[:, None], anchors[None]))
    shared = tf.minimum(low[1], high[1]) - tf.maximum(low[0], high[0])
    common = tf.reduce_prod(tf.maximum(shared, 0.0), -1)
    areas = [tf.reduce_prod(end - begin, -1) for begin, end in (low, high)]
    return common / (areas[0] + areas[1] - common)


def _assigned(anchors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return classes, boxes and weights that the anchors of one image should find."""
    overlap = _overlaps(floats(_BOXES, 4), anchors)
    best, quality = tf.argmax(overlap, 0), tf.reduce_max(overlap, 0)
    found = tf.cast(quality > 0.5, tf.float32)
    chosen = tf.one_hot(best, _BOXES) * found[:, None]
    classes = tf.matmul(chosen, floats(_BOXES, _CLASSES))
    boxes = tf.matmul(chosen, floats(_BOXES, 4))
    return classes, tf.math.log(tf.maximum(boxes / anchors, 1e-6)), found


def _focal_loss(logits: Tensor, classes: Tensor) -> Tensor:
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=classes, logits=logits)
    chances = tf.sigmoid(logits)
    right = classes * chances + (1.0 - classes) * (1.0 - chances)
    alpha = classes * 0.25 + (1.0 - classes) * 0.75
    return tf.reduce_sum(tf.pow(1.0 - right, 2.0) * alpha * entropy)


def _near_loss(boxes: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    error = tf.abs(boxes - wanted)
    bent = tf.where(error < 1.0, 0.5 * error * error, error - 0.5)
    return tf.reduce_sum(tf.reduce_sum(bent, -1) * weights)


def _ssd_loss(batch: int) -> Tensor:
    levels = _pyramid(_backbone(floats(batch, 320, 320, 3)))
    heads = _Head(_CLASSES), _Head(4)
    logits, boxes = (tf.concat([head(x) for x in levels], 1) for head in heads)
    anchors = floats(boxes.shape[1], 4)
    wanted = [_assigned(anchors) for _ in range(batch)]
    classes, places, weights = (tf.stack(each) for each in zip(*wanted, strict=True))
    decay = tf.add_n(
        [tf.nn.l2_loss(v) for v in v1.trainable_variables() if len(v.shape) > 1]
    )
    loss = _focal_loss(logits, classes) + _near_loss(boxes, places, weights)
    matched = tf.maximum(tf.reduce_sum(weights), 1.0)
    return loss / matched + _WEIGHT_DECAY * decay


def ssd320(batch: int, *, scaled: bool = False) -> Step:
    """Return a step of SSD on images of 320 x 320 with 90 classes."""
    return training_step(partial(_ssd_loss, batch), momentum, scaled=scaled)
