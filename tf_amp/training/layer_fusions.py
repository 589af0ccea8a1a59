"""Layers of Keras 3 in training as fewer kernels of TensorFlow.

BatchNormalization:
    Before   moments(x), then (x - mean) * rsqrt(variance + epsilon) * gamma + beta
    After    FusedBatchNormV3(x, gamma, beta), with FusedBatchNormGradV3 as its gradient
Keras reads the input four times on the way forward, and more often on the way back; the
kernels (tensorflow/core/kernels/fused_batch_norm_op.cc) do so twice. The variance that
they return has Bessel's correction, which Keras' moving average goes without.
Not done: with a mask, synchronized, with renormalization, for what is not images of
float32 with channels last, under another policy than float32, where a subclass computes
moments by itself, for an epsilon below cuDNN's least, under XLA.

GELU:
    Before   x * P(x), with the normal distribution's P; its gradient reads three
    tensors
    After    the same, and P(x) + x * p(x), which the gradient is multiplied by
TensorFlow has no kernel of GELU for training; where a network is wide, what its
gradient reads is most of what a step keeps in memory. The formulas are those of
`tf.nn.gelu`, but for erf in place of erfc: that takes four times as long on CPUs, and
is more exact only where P is next to nothing. The approximation by tanh has its own
derivative.
Not done: where no tape records, for other types than float32, under eager execution,
under XLA.

Embedding, of a table that is trained:
    Before   GatherV2(ReadVariableOp(table), ids)
    After    ResourceGather(table, ids)
Once an optimizer has updated some rows of a table in place, as SGD does, TensorFlow
copies the whole of it wherever it is read (`copy_on_read_mode` in
tensorflow/core/framework/resource_var.h); Keras reads it to look up a few rows.
Not done: where no gradients are recorded; under another policy than float32; for tables
that are quantized or a sum of several; under XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from grappler_pass.annotations import FUSED
from grappler_pass.fusions import BATCH_STATISTICS, GELU_GRADIENTS, ROW_READS
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private import wrapping_unconverted
from tf_amp._tensorflow_private.tracing import put_attribute
from tf_amp.tracing.stamps import current_config

_STRATEGIES = (
    tf.distribute.OneDeviceStrategy,
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
)


def is_wanted(rule: str) -> bool:
    """Return whether the settings here have a rule, and nothing speaks against it.

    At O0 graphs stay as the program has them. XLA fuses by itself; of other strategies,
    variables are not looked at.
    """
    config = current_config()
    if config is None or not config.rewrites or rule not in config.fuse:
        return False
    strategy = tf.distribute.get_strategy()
    is_known = not tf.distribute.has_strategy() or isinstance(strategy, _STRATEGIES)
    return is_known and not private.in_xla_context()


def mark(made: Any, rule: str) -> None:
    """Have plans list a kernel by its rule; under eager execution there is none.

    Args:
      made: an operation, or a tensor that it makes.
      rule: its name.
    """
    if not tf.executing_eagerly():
        operation = made if isinstance(made, tf.Operation) else made.op
        put_attribute(operation, FUSED, s=rule.encode())


Call = Callable[..., Any]

# CUDNN_BN_MIN_EPSILON, as TensorFlow rounds it up.
_LEAST_EPSILON = 1.001e-5
_IMAGES = 4


@wrapping_unconverted
def _normalized(
    call: Call, layer: Any, inputs: Any, training: Any = None, mask: Any = None
) -> Any:
    """Do what a layer's `call` does, by a kernel where it does the same."""
    is_training = training is True or training == 1
    can_fuse = (
        mask is None
        and is_training
        and isinstance(inputs, tf.Tensor)
        and inputs.dtype == tf.float32
        and inputs.shape.rank == _IMAGES
        and inputs.shape[-1] is not None
        and layer.axis in (-1, _IMAGES - 1)
        and layer.trainable
        # Not every release has renormalization.
        and not (layer.synchronized or getattr(layer, "renorm", False))
        and layer.compute_dtype == layer.variable_dtype == "float32"
        and layer.epsilon >= _LEAST_EPSILON
        and private.has_own_moments(layer)
        and is_wanted(BATCH_STATISTICS)
    )
    if not can_fuse:
        return call(layer, inputs, training=training, mask=mask)
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


# As in `tf.nn.gelu`.
_CUBIC = 0.044715
_SCALE = math.sqrt(2 / math.pi)


@wrapping_unconverted
def _with_derivative(
    gelu: Callable[..., Any],
    features: Any,
    approximate: bool = False,
    name: str | None = None,
) -> Any:
    """Do what `tf.nn.gelu` does, with its derivative where one is asked for."""
    can_fuse = (
        isinstance(features, tf.Tensor)
        and features.dtype == tf.float32
        and not tf.executing_eagerly()
        and private.is_recording()
        and is_wanted(GELU_GRADIENTS)
    )
    if not can_fuse:
        return gelu(features, approximate, name)
    formula = _tanh if approximate else _exact
    derivatives = []

    def compute(source: tf.Tensor) -> tf.Tensor:
        result, derivative = formula(source)
        derivatives.append(derivative)
        return result

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        # Second derivatives need what depends on the features.
        is_followed = private.is_recording()
        derivative = formula(features)[1] if is_followed else derivatives[0]
        product = upstream * derivative
        mark(product, GELU_GRADIENTS)
        return product

    with tf.name_scope(name or "Gelu"):
        return private.with_slope(compute, features, gradient)


def _exact(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x * P(x) and its derivative."""
    scaled = x * math.sqrt(0.5)
    probability = 0.5 + 0.5 * tf.math.erf(scaled)
    density = tf.exp(-0.5 * math.log(math.pi) - scaled * scaled)
    return x * probability, probability + scaled * density


def _tanh(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x * (1 + tanh(f(x))) / 2 and its derivative."""
    square = x * x
    bent = tf.tanh(x * (_SCALE + _SCALE * _CUBIC * square))
    half = 0.5 * x
    steepness = _SCALE + 3 * _SCALE * _CUBIC * square
    probability = 0.5 + 0.5 * bent
    return x * probability, probability + half * (1 - bent * bent) * steepness


@wrapping_unconverted
def _read_rows(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
    """Do what a layer's `call` does, and read no more than it looks up."""
    table = _trained_table(layer) if isinstance(inputs, tf.Tensor) else None
    if table is None or not is_wanted(ROW_READS):
        return call(layer, inputs)
    # As Keras does: of numbers under 0, from the table's end.
    is_number = inputs.dtype in (tf.int32, tf.int64)
    numbers = inputs if is_number else tf.cast(inputs, tf.int32)
    count = tf.cast(table.shape[0], numbers.dtype)
    rows = tf.gather(table, tf.where(numbers < 0, numbers + count, numbers))
    mark(rows, ROW_READS)
    return rows


def _trained_table(layer: Any) -> Any:
    """Return the variable that a layer looks up and learns; None if there is none.

    Of several replicas it is that of this one; there is none between them.
    """
    weight = layer.embeddings
    table = getattr(weight, "value", None)
    if not isinstance(table, tf.Variable) or table.dtype != tf.float32:
        return None
    is_plain = layer.compute_dtype == layer.variable_dtype == "float32"
    is_trained = weight.trainable and private.is_recording()
    if not is_plain or not is_trained:
        return None
    if tf.distribute.in_cross_replica_context() and tf.distribute.has_strategy():
        return None
    strategy = tf.distribute.get_strategy()
    components = strategy.experimental_local_results(table)
    return next((one for one in components if one.handle is table.handle), None)


HOOKS = {
    private.BATCH_NORMALIZATION: _normalized,
    private.GELU: _with_derivative,
    private.EMBEDDING: _read_rows,
}
