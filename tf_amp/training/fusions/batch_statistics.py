"""Keras 3's BatchNormalization in training as one kernel of TensorFlow.

Before   moments(x), then (x - mean) * rsqrt(variance + epsilon) * gamma + beta
After    FusedBatchNormV3(x, gamma, beta), with FusedBatchNormGradV3 as its gradient

Keras reads the input four times on the way forward, and more often on the way back; the
kernels (tensorflow/core/kernels/fused_batch_norm_op.cc) do so twice. The variance that
they return has Bessel's correction, which Keras' moving average goes without.

Not done: with a mask, synchronized, with renormalization, for what is not images of
float32 with channels last, under another policy than float32, where a subclass computes
moments by itself, for an epsilon below cuDNN's least, under XLA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from grappler_pass.fusions import BATCH_STATISTICS
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private import wrapping_unconverted
from tf_amp.training.fusions.tracing import is_wanted, mark

Call = Callable[..., Any]

# CUDNN_BN_MIN_EPSILON, as TensorFlow rounds it up.
_LEAST_EPSILON = 1.001e-5
_IMAGES = 4


@wrapping_unconverted
def _fused(
    call: Call, layer: Any, inputs: Any, training: Any = None, mask: Any = None
) -> Any:
    """Do what a layer's `call` does, by a kernel where it does the same."""
    is_training = training is True or training == 1
    if mask is None and is_training and _is_suitable(layer, inputs):
        return _normalized(layer, inputs)
    return call(layer, inputs, training=training, mask=mask)


def _is_suitable(layer: Any, inputs: Any) -> bool:
    if not isinstance(inputs, tf.Tensor) or inputs.dtype != tf.float32:
        return False
    is_image = inputs.shape.rank == _IMAGES and layer.axis in (-1, _IMAGES - 1)
    is_plain = layer.trainable and not (layer.synchronized or _has_renorm(layer))
    return (
        is_image
        and is_plain
        and inputs.shape[-1] is not None
        and layer.compute_dtype == layer.variable_dtype == "float32"
        and layer.epsilon >= _LEAST_EPSILON
        and private.has_own_moments(layer)
        and is_wanted(BATCH_STATISTICS)
    )


def _has_renorm(layer: Any) -> bool:
    # Not every release has it.
    return bool(getattr(layer, "renorm", False))


def _normalized(layer: Any, inputs: Any) -> Any:
    """Return the layer's outputs, and move its averages."""
    channels = inputs.shape[-1]
    outputs, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=inputs,
        scale=layer.gamma.value if layer.scale else tf.ones([channels]),
        offset=layer.beta.value if layer.center else tf.zeros([channels]),
        mean=tf.zeros([0]),
        variance=tf.zeros([0]),
        epsilon=layer.epsilon,
        exponential_avg_factor=1.0,
        data_format="NHWC",
        is_training=True,
    )
    mark(outputs, BATCH_STATISTICS)
    count = tf.cast(tf.size(inputs) // channels, tf.float32)
    _move(layer.moving_mean, mean, layer.momentum)
    _move(layer.moving_variance, variance * ((count - 1.0) / count), layer.momentum)
    return outputs


def _move(average: Any, value: Any, momentum: float) -> None:
    average.assign(average.value * momentum + value * (1.0 - momentum))


HOOKS = {private.BATCH_NORMALIZATION: _fused}
