"""How programs become graphs: functions as traced, and training steps of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks.training_graphs.words import Gradients, Step, Tensor, v1
from tf_amp.tracing import grappler_preview


def floats_spec(*shape: int | None) -> tf.TensorSpec:
    """Return the description of an input of float32 numbers."""
    return tf.TensorSpec(shape, tf.float32)


def integers_spec(*shape: int | None) -> tf.TensorSpec:
    """Return the description of an input of indices."""
    return tf.TensorSpec(shape, tf.int32)


def traced(function: Callable[..., Any], *specs: Any) -> Step:
    """Return the graph of a function for inputs of these descriptions."""
    whole = tf.function(function, autograph=False).get_concrete_function(*specs)
    return step_of_function(whole)


def step_of_function(concrete: Any) -> Step:
    """Return the graph of a function that is traced already."""
    graph = concrete.graph
    return Step(
        grappler_preview.graph_with_variables(graph), grappler_preview.kept_nodes(graph)
    )


def keras_step(
    model: Any, loss: Any, optimizer: Any, x: tf.TensorSpec, y: tf.TensorSpec
) -> Step:
    """Return the training step of a model of Keras 3 or tf_keras."""
    model.compile(optimizer, loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return model.train_step((x, y))["loss"]

    return traced(step, x, y)


def keras_inference(model: keras.Model, x: tf.TensorSpec) -> Step:
    """Return the inference of a model of Keras 3."""
    return traced(lambda x: model(x, training=False), x)


def outputs_in_graph(make: Callable[[], Tensor]) -> Step:
    """Return a graph of TensorFlow 1's kind that computes one tensor."""
    with tf.Graph().as_default() as graph:
        result = make()
    return Step(graph.as_graph_def(), (result.op.name,))


def descent(gradients: Gradients) -> tf.Operation:
    """Return an update by plain gradient descent."""
    return v1.train.GradientDescentOptimizer(0.1).apply_gradients(gradients)
