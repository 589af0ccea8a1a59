"""Programs whose structure is particular: control flow, sessions, stored, ragged."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import keras
import tensorflow as tf

import tf_amp
from benchmarks.training_graphs.words import (
    Step,
    Tensor,
    adam,
    dense,
    floats,
    integers,
    training_step,
    v1,
    variable,
    word_loss,
)
from grappler_pass.fusions import RULES
from tests.golden_programs.tracing import (
    descent,
    floats_spec,
    integers_spec,
    keras_step,
    outputs_in_graph,
    step_of_function,
    traced,
)

_BATCH, _WIDTH = 16384, 1024
_CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def while_loop() -> Step:
    """Return a step through a loop that applies one product again and again."""

    def loss() -> Tensor:
        kernel = variable("kernel", _WIDTH, _WIDTH)

        def body(step: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return step + 1, tf.tanh(tf.matmul(x, kernel))

        start = (tf.constant(0), floats(_BATCH, _WIDTH))
        _, x = tf.while_loop(
            lambda step, _: step < 8, body, start, maximum_iterations=8
        )
        return word_loss(dense(x, 100), integers(_BATCH))

    return training_step(loss, adam)


def conditional() -> Step:
    """Return a step in which a branch decides which of two layers computes."""

    def loss() -> Tensor:
        x = dense(floats(_BATCH, _WIDTH), _WIDTH, tf.nn.relu)
        weights = variable("a", _WIDTH, _WIDTH), variable("b", _WIDTH, _WIDTH)
        x = tf.cond(
            v1.placeholder(tf.bool, ()),
            lambda: tf.nn.relu(tf.matmul(x, weights[0])),
            lambda: tf.tanh(tf.matmul(x, weights[1])) * 0.5,
        )
        return word_loss(dense(x, 100), integers(_BATCH))

    return training_step(loss, adam)


def accumulation() -> Step:
    """Return a function that applies the gradients of every fourth call."""
    layer = keras.layers.Dense(_WIDTH, "relu")
    layer.build((_BATCH, _WIDTH))
    weights = [each.value for each in layer.trainable_variables]
    sums = [tf.Variable(tf.zeros_like(each), trainable=False) for each in weights]
    count = tf.Variable(0, trainable=False)

    def apply() -> None:
        for each, total in zip(weights, sums, strict=True):
            each.assign_sub(0.1 * total / 4.0)
            total.assign(tf.zeros_like(total))

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(layer(layer(x)) ** 2)
        for total, gradient in zip(sums, tape.gradient(loss, weights), strict=True):
            total.assign_add(gradient)
        count.assign_add(1)
        tf.cond(count % 4 == 0, apply, lambda: None)
        return loss

    return traced(step, floats_spec(_BATCH, _WIDTH))


def custom_gradient() -> Step:
    """Return a step through an activation with a gradient of its own."""

    @tf.custom_gradient
    def clipped(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return tf.nn.softplus(x), lambda dy: tf.clip_by_value(
            dy * tf.sigmoid(x), -1.0, 1.0
        )

    def loss() -> Tensor:
        x = clipped(dense(floats(_BATCH, _WIDTH), 2048))
        return word_loss(dense(x, 1000), integers(_BATCH))

    return training_step(loss, adam)


def float64_parts() -> Step:
    """Return a step of which the statistics and the loss are in float64."""

    def loss() -> Tensor:
        x = dense(floats(_BATCH, _WIDTH), _WIDTH, tf.nn.relu)
        exact = tf.cast(x, tf.float64)
        exact = exact - tf.reduce_mean(exact, 0)
        scatter = tf.matmul(exact, exact, transpose_a=True) / float(_BATCH)
        logits = dense(tf.cast(exact, tf.float32), 100)
        penalty = tf.cast(tf.linalg.trace(scatter), tf.float32)
        return word_loss(logits, integers(_BATCH)) + 1e-3 * penalty

    return training_step(loss, adam)


def session() -> Step:
    """Return a graph of a v1 Session with reference variables."""
    with tf.Graph().as_default() as graph:
        x = floats(_BATCH, _WIDTH)
        for number, units in enumerate((2048, 1000)):
            shape = (x.shape[-1], units)
            kernel = v1.get_variable(f"kernel{number}", shape, use_resource=False)
            bias = v1.get_variable(f"bias{number}", (units,), use_resource=False)
            x = tf.nn.bias_add(tf.matmul(x, kernel), bias)
            x = tf.nn.relu(x) if units == 2048 else x
        loss = word_loss(x, integers(_BATCH))
        variables = v1.trainable_variables()
        gradients = tf.gradients(loss, variables)
        step = descent(list(zip(gradients, variables, strict=True)))
    return Step(graph.as_graph_def(), (step.name, loss.op.name))


class _Stored(tf.Module):
    """Two layers whose one signature is served."""

    def __init__(self) -> None:
        super().__init__()
        self.first = tf.Variable(tf.ones((_WIDTH, 2048)))
        self.second = tf.Variable(tf.ones((2048, 100)))

    @tf.function(input_signature=[tf.TensorSpec((None, _WIDTH), tf.float32)])
    def serve(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.softmax(tf.nn.relu(x @ self.first) @ self.second)


def saved_model() -> Step:
    """Return the signature of a SavedModel that was stored and restored."""
    with tempfile.TemporaryDirectory() as folder:
        module = _Stored()
        tf.saved_model.save(module, folder, signatures=module.serve)
        restored = tf.saved_model.load(folder)
    return step_of_function(restored.signatures["serving_default"])


def legacy_keras() -> Step:
    """Return a step of tf_keras."""
    import tf_keras

    # It numbers layers of the same name.
    tf_keras.backend.clear_session()
    layers = tf_keras.layers
    model = tf_keras.Sequential(
        [layers.Dense(2048, "relu", input_shape=(_WIDTH,)), layers.Dense(100)]
    )
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, y = floats_spec(_BATCH, _WIDTH), integers_spec(_BATCH)
    return keras_step(model, loss, tf_keras.optimizers.Adam(1e-3), x, y)


def compiled() -> Step:
    """Return a step of which XLA compiles the layers and their gradients."""
    first, second = (tf.Variable(tf.zeros((_WIDTH, _WIDTH))) for _ in range(2))

    @tf.function(autograph=False, jit_compile=True)
    def gradients(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            hidden = tf.nn.gelu(x @ first)
            loss = tf.reduce_mean(tf.nn.softmax(hidden @ second * 2.0 + 1.0) ** 2)
        return tape.gradient(loss, [first, second])

    def step(x: tf.Tensor) -> None:
        for each, gradient in zip((first, second), gradients(x), strict=True):
            each.assign_sub(0.1 * gradient)

    return traced(step, floats_spec(_BATCH, _WIDTH))


def scaled_loss() -> Step:
    """Return a step whose loss is scaled, and whose gradients are tested."""

    def loss() -> Tensor:
        x = dense(floats(_BATCH, _WIDTH), 2048, tf.nn.relu)
        return word_loss(dense(x, 1000), integers(_BATCH))

    return training_step(loss, adam, scaled=True)


def mixed_keras() -> Step:
    """Return a step of Keras as traced while mixed precision is on."""
    tf_amp.enable(dtype="float16", device_profile="cpu-generic", fuse=RULES)
    try:
        inputs = keras.Input((32, 32, 32))
        x = keras.layers.Conv2D(64, 3)(inputs)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        x = keras.layers.Dense(512, "gelu")(keras.layers.Flatten()(x))
        model = keras.Model(inputs, keras.layers.Dense(100)(x))
        x, y = floats_spec(1024, 32, 32, 32), integers_spec(1024)
        optimizer = keras.optimizers.Adam(1e-3)
        return keras_step(model, _CROSS_ENTROPY, optimizer, x, y)
    finally:
        tf_amp.disable()


def graph_network() -> Step:
    """Return a step of message passing: gathered nodes, sums over edges."""

    def loss() -> Tensor:
        nodes, edges = 20000, 200000
        x = dense(floats(nodes, 256), 256, tf.nn.relu)
        source, target = integers(edges), integers(edges)
        for _ in range(2):
            sent = dense(tf.gather(x, source), 256, tf.nn.relu)
            heard = tf.math.unsorted_segment_sum(sent, target, nodes)
            x = dense(tf.concat((x, heard), 1), 256, tf.nn.relu)
        return word_loss(dense(x, 40), integers(nodes))

    return training_step(loss, adam)


def ragged() -> Step:
    """Return a step over rows of different lengths."""
    table = tf.Variable(tf.zeros((10000, 256)))
    kernel = tf.Variable(tf.zeros((256, _WIDTH)))
    spec = tf.RaggedTensorSpec((_BATCH, None), tf.int32, row_splits_dtype=tf.int32)

    def step(words: tf.RaggedTensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            found = tf.ragged.map_flat_values(tf.gather, table, words)
            hidden = tf.nn.relu(tf.reduce_mean(found, 1) @ kernel)
            loss = tf.reduce_mean(hidden**2)
        gradient = tape.gradient(loss, kernel)
        kernel.assign_sub(0.1 * gradient)
        return loss

    return traced(step, spec)


def sparse() -> Step:
    """Return the inference on a sparse input."""

    def make() -> Tensor:
        given = v1.sparse_placeholder(tf.float32, (_BATCH, 50000))
        hidden = tf.sparse.sparse_dense_matmul(given, variable("kernel", 50000, 512))
        return dense(tf.nn.relu(dense(tf.nn.relu(hidden), _WIDTH)), 100)

    return outputs_in_graph(make)


def lookup() -> Step:
    """Return the inference on strings that are hashed and looked up."""

    def make() -> Tensor:
        text = v1.placeholder(tf.string, (_BATCH, 8))
        rows = tf.strings.to_hash_bucket_fast(tf.strings.lower(text), 10000)
        x = tf.reshape(tf.gather(variable("table", 10000, 128), rows), (_BATCH, -1))
        return tf.argmax(dense(dense(x, 2048, tf.nn.relu), 100), -1)

    return outputs_in_graph(make)
