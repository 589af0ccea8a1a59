"""One step for each rule that is applied while tracing, before and after, as text.

`python -m tests.traced_texts` writes them anew, to be reviewed as a diff. Constants,
arguments and reads of variables are left out, and so is what only waits.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable

import keras
import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

import tf_amp
from grappler_pass.fusions import (
    BATCH_STATISTICS,
    GELU_GRADIENTS,
    OPTIMIZER_STEPS,
    ROW_READS,
)
from tests.text_graph import text_from_graph

FOLDER = pathlib.Path(__file__).with_name("golden") / "traced"
_LEFT_OUT = ("Const", "Placeholder", "ReadVariableOp", "NoOp")
_IMAGES = (8, 6, 5, 4)

Function = tf.types.experimental.PolymorphicFunction
Traced = tuple[Function, tuple[tf.TensorSpec, ...]]


def _optimizer_step() -> Traced:
    weight = keras.Variable(tf.ones([256, 256]))
    optimizer = keras.optimizers.Adam(0.01, name="adam")
    optimizer.build([weight])

    def step(gradient: tf.Tensor) -> None:
        optimizer.apply([gradient], [weight])

    return tf.function(step, autograph=False), (tf.TensorSpec(weight.shape),)


def _batch_statistics() -> Traced:
    layer = keras.layers.BatchNormalization(name="norm")
    layer.build(_IMAGES)

    def step(x: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
        return _gradients(lambda: layer(x, training=True), layer, upstream)

    return tf.function(step, autograph=False), (tf.TensorSpec(_IMAGES),) * 2


def _row_reads() -> Traced:
    layer = keras.layers.Embedding(50, 8, name="rows")
    layer.build()

    def step(ids: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
        rows, slices = _gradients(lambda: layer(ids), layer, upstream)
        return [rows, slices.values]

    specs = tf.TensorSpec([3], tf.int32), tf.TensorSpec([3, 8])
    return tf.function(step, autograph=False), specs


def _gelu_gradients() -> Traced:
    def step(x: tf.Tensor, upstream: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.gelu(x)
        return [y, tape.gradient(y, x, upstream)]

    return tf.function(step, autograph=False), (tf.TensorSpec([9]),) * 2


def _gradients(
    call: Callable[[], tf.Tensor], layer: keras.Layer, upstream: tf.Tensor
) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        y = call()
    weights = [each.value for each in layer.trainable_variables]
    return [y, *tape.gradient(y, weights, upstream)]


STEPS: dict[str, Callable[[], Traced]] = {
    OPTIMIZER_STEPS: _optimizer_step,
    BATCH_STATISTICS: _batch_statistics,
    ROW_READS: _row_reads,
    GELU_GRADIENTS: _gelu_gradients,
}


def text_of(rule: str) -> str:
    """Return a step as Keras or TensorFlow writes it, and as the rule does."""
    parts = []
    for title, fuse in (("before", "off"), ("after", rule)):
        tf_amp.enable(fuse=fuse, tune="off", device_profile="cpu-generic")
        try:
            function, specs = STEPS[rule]()
            graph = function.get_concrete_function(*specs).graph
        finally:
            tf_amp.disable()
        parts += [f"# {title}", _text(graph.as_graph_def())]
    return "\n".join(parts) + "\n"


def _text(graph_def: GraphDef) -> str:
    shown = GraphDef()
    shown.node.extend(n for n in graph_def.node if n.op not in _LEFT_OUT)
    for node in shown.node:
        data = [text for text in node.input if not text.startswith("^")]
        node.input[:] = data
    # Keras numbers layers and optimizers of the same name.
    return re.sub(r"\b(adam|norm|rows)(_\d+)+/", r"\1/", text_from_graph(shown))


def golden_path(rule: str) -> pathlib.Path:
    """Return where the texts of a rule are kept."""
    return FOLDER / f"{rule}.txt"


def main() -> None:
    """Write the texts of all these rules."""
    for rule in STEPS:
        golden_path(rule).write_text(text_of(rule))


if __name__ == "__main__":
    main()
