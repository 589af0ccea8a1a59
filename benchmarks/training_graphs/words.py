"""What the graphs are written with: variables, layers and the step that trains them.

Everything is made in a graph of TensorFlow 1's kind, whose variables take no memory
before a session makes them, so that any batch size can be planned.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

v1 = tf.compat.v1
Tensor = tf.Tensor


@dataclass(frozen=True)
class Step:
    """A graph, and the node that runs one step of training."""

    graph_def: GraphDef
    fetches: tuple[str, ...]


def variable(name: str, *shape: int) -> tf.Variable:
    """Return a new float32 variable; names repeat at will."""
    unique = v1.get_default_graph().unique_name(name)
    return v1.get_variable(unique, shape, tf.float32, use_resource=True)


def floats(*shape: int) -> Tensor:
    """Return an input of float32 numbers."""
    return v1.placeholder(tf.float32, shape)


def integers(*shape: int) -> Tensor:
    """Return an input of indices."""
    return v1.placeholder(tf.int32, shape)


def dense(
    x: Tensor, units: int, activation: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Return a layer over the last axis, computed as one product of two matrices."""
    *outer, width = x.shape
    kernel, bias = variable("kernel", width, units), variable("bias", units)
    flat = tf.reshape(x, (-1, width)) if len(outer) > 1 else x
    y = tf.nn.bias_add(tf.matmul(flat, kernel), bias)
    y = tf.reshape(y, (*outer, units)) if len(outer) > 1 else y
    return activation(y) if activation else y


def layer_norm(x: Tensor) -> Tensor:
    """Return the layer as TensorFlow 1's contrib.layers computes it."""
    width = x.shape[-1]
    mean, variance = tf.nn.moments(x, (-1,), keepdims=True)
    scale, offset = variable("gamma", width), variable("beta", width)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-12)


def gelu(x: Tensor) -> Tensor:
    """Return the approximation by tanh, op by op."""
    inner = 0.7978845608 * (x + 0.044715 * tf.pow(x, 3.0))
    return x * (0.5 * (1.0 + tf.tanh(inner)))


def dropout(x: Tensor, rate: float = 0.1) -> Tensor:
    """Return the layer in training."""
    return tf.nn.dropout(x, rate)


def word_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of words."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses)


Gradients = Sequence[tuple[Tensor | tf.IndexedSlices, tf.Variable]]
Update = Callable[[Gradients], tf.Operation]


def momentum(gradients: Gradients) -> tf.Operation:
    """Return an update by gradient descent with momentum."""
    return v1.train.MomentumOptimizer(0.1, 0.9).apply_gradients(gradients)


def adam(gradients: Gradients) -> tf.Operation:
    """Return an update by Adam."""
    return v1.train.AdamOptimizer(1e-3).apply_gradients(gradients)


def accumulate(gradients: Gradients) -> tf.Operation:
    """Return an update that only adds the gradients up, for a later step."""
    return tf.group(
        *(
            variable("sum", *each.shape).assign_add(tf.convert_to_tensor(gradient))
            for gradient, each in gradients
        )
    )


def training_step(
    loss: Callable[[], Tensor], update: Update, *, scaled: bool = False
) -> Step:
    """Return the graph of one step: forward, backward, update.

    Args:
        loss: makes the forward part.
        update: makes the last part, given gradients and variables.
        scaled: whether the loss is scaled, as float16 needs it: the gradients are
            unscaled and tested for overflow.
    """
    graph = tf.Graph()
    with graph.as_default():
        value = loss()
        found, tests = _gradients(value, scaled)
        step = update(found)
    return Step(graph.as_graph_def(), (step.name, value.op.name, *tests))


def _gradients(loss: Tensor, scaled: bool) -> tuple[Gradients, tuple[str, ...]]:
    variables = v1.trainable_variables()
    scale = floats() if scaled else None
    seen = tf.gradients(loss if scale is None else loss * scale, variables)
    pairs = [(g, v) for g, v in zip(seen, variables, strict=True) if g is not None]
    if scale is None:
        return pairs, ()
    unscaled = [(_times(g, 1.0 / scale), v) for g, v in pairs]
    finite = [tf.reduce_all(tf.math.is_finite(_values(g))) for g, _ in unscaled]
    return unscaled, (tf.reduce_all(tf.stack(finite)).op.name,)


def _times(gradient: Tensor | tf.IndexedSlices, factor: Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * factor
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _values(gradient: Tensor | tf.IndexedSlices) -> Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
