"""GELU in training: its derivative is computed at once, and nothing else is kept.

Before   x * P(x), with the normal distribution's P; its gradient reads three tensors
After    the same, and P(x) + x * p(x) beside it, which the gradient is multiplied by

TensorFlow has no kernel of GELU for training; where a network is wide, what its
gradient reads is most of what a step keeps in memory. The formulas are those of
`tf.nn.gelu`, but for erf in place of erfc: that takes four times as long on CPUs, and
is more exact only where P is next to nothing. The approximation by tanh has its own
derivative.

Not done: where no tape records, for other types than float32, under eager execution,
under XLA.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from grappler_pass.fusions import GELU_GRADIENTS
from tf_amp._tensorflow_private import training as private
from tf_amp._tensorflow_private import wrapping_unconverted
from tf_amp.training.fusions.tracing import is_wanted, mark

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
    if not _is_suitable(features):
        return gelu(features, approximate, name)
    with tf.name_scope(name or "Gelu"):
        return _activated(features, _tanh if approximate else _exact)


def _is_suitable(features: Any) -> bool:
    return (
        isinstance(features, tf.Tensor)
        and features.dtype == tf.float32
        and not tf.executing_eagerly()
        and private.is_recording()
        and is_wanted(GELU_GRADIENTS)
    )


def _activated(
    features: tf.Tensor, formula: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
) -> Any:
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


HOOKS = {private.GELU: _with_derivative}
