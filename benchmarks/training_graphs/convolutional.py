"""ResNet-50 v1.5, ResNeXt-101 32x4d and U-Net, as NVIDIA's collection has them."""

import tensorflow as tf

from benchmarks.training_graphs.words import (
    Step,
    Tensor,
    adam,
    dense,
    floats,
    integers,
    momentum,
    training_step,
    v1,
    variable,
    word_loss,
)

_CLASSES = 1001
_WEIGHT_DECAY = 3e-5


def convolve(
    x: Tensor, filters: int, size: int, stride: int = 1, groups: int = 1
) -> Tensor:
    """Return a convolution without a bias; each group has its own channels."""
    kernel = variable("kernel", size, size, x.shape[-1] // groups, filters)
    return tf.nn.conv2d(x, kernel, stride, "SAME")


def _normalize(x: Tensor) -> Tensor:
    channels = x.shape[-1]
    scale, offset = variable("gamma", channels), variable("beta", channels)
    y, mean, variance = v1.nn.fused_batch_norm(x, scale, offset)[:3]
    for name, value in (("mean", mean), ("variance", variance)):
        moving = v1.get_variable(
            v1.get_default_graph().unique_name(name),
            (channels,),
            use_resource=True,
            trainable=False,
        )
        v1.add_to_collection(
            v1.GraphKeys.UPDATE_OPS, moving.assign_sub(0.1 * (moving - value))
        )
    return y


def _bottleneck(x: Tensor, width: int, out: int, stride: int, groups: int) -> Tensor:
    y = tf.nn.relu(_normalize(convolve(x, width, 1)))
    y = tf.nn.relu(_normalize(convolve(y, width, 3, stride, groups)))
    y = _normalize(convolve(y, out, 1))
    if x.shape[-1] != out:
        x = _normalize(convolve(x, out, 1, stride))
    return tf.nn.relu(x + y)


def residual_loss(batch: int, blocks: tuple[int, ...], groups: int) -> Tensor:
    """Return the loss of a residual network with so many blocks in its stages."""
    x = floats(batch, 224, 224, 3)
    x = tf.nn.relu(_normalize(convolve(x, 64, 7, 2)))
    x = tf.nn.max_pool2d(x, 3, 2, "SAME")
    for stage, count in enumerate(blocks):
        out = 256 << stage
        width = out // 2 if groups > 1 else out // 4
        for block in range(count):
            stride = 2 if stage and not block else 1
            x = _bottleneck(x, width, out, stride, groups)
    logits = dense(tf.reduce_mean(x, (1, 2)), _CLASSES)
    decay = tf.add_n(
        [
            tf.nn.l2_loss(each)
            for each in v1.trainable_variables()
            if len(each.shape) > 1
        ]
    )
    return word_loss(logits, integers(batch)) + _WEIGHT_DECAY * decay


def resnet50(batch: int, *, scaled: bool = False) -> Step:
    """Return a step of ResNet-50 v1.5 on images of 224 x 224."""
    return training_step(
        lambda: residual_loss(batch, (3, 4, 6, 3), 1), momentum, scaled=scaled
    )


def resnext101(batch: int, *, scaled: bool = False) -> Step:
    """Return a step of ResNeXt-101 with 32 groups of 4 channels."""
    return training_step(
        lambda: residual_loss(batch, (3, 4, 23, 3), 32), momentum, scaled=scaled
    )


def _valid(x: Tensor, filters: int, size: int = 3) -> Tensor:
    kernel, bias = (
        variable("kernel", size, size, x.shape[-1], filters),
        variable("bias", filters),
    )
    return tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "VALID"), bias)


def _twice(x: Tensor, filters: int) -> Tensor:
    for _ in range(2):
        x = tf.nn.relu(_valid(x, filters))
    return x


def _up(x: Tensor, beside: Tensor) -> Tensor:
    batch, size, _, channels = x.shape
    half = channels // 2
    kernel = variable("kernel", 2, 2, half, channels)
    shape = (batch, 2 * size, 2 * size, half)
    x = tf.nn.conv2d_transpose(x, kernel, shape, 2, "VALID")
    x = tf.nn.bias_add(x, variable("bias", half))
    edge = (beside.shape[1] - 2 * size) // 2
    cropped = beside[:, edge : edge + 2 * size, edge : edge + 2 * size]
    return _twice(tf.concat((cropped, x), -1), half)


def _unet_loss(batch: int) -> Tensor:
    x, skipped = floats(batch, 572, 572, 1), []
    for filters in (64, 128, 256, 512):
        x = _twice(x, filters)
        skipped.append(x)
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    x = _twice(x, 1024)
    for beside in reversed(skipped):
        x = _up(x, beside)
    logits = _valid(x, 2, 1)
    labels = floats(batch, 388, 388, 2)
    entropy = tf.nn.softmax_cross_entropy_with_logits(labels, logits)
    chances = tf.nn.softmax(logits)
    overlap = tf.reduce_sum(chances * labels, (0, 1, 2))
    dice = 2.0 * overlap / tf.reduce_sum(chances + labels, (0, 1, 2))
    return tf.reduce_mean(entropy) + 1.0 - tf.reduce_mean(dice)


def unet(batch: int, *, scaled: bool = False) -> Step:
    """Return a step of U-Net on images of 572 x 572."""
    return training_step(lambda: _unet_loss(batch), adam, scaled=scaled)
