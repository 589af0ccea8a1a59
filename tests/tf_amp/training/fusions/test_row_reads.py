"""A table that is trained is read row by row, and learns the same."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.forking import run_forked
from tests.tf_amp.training.fusions.test_fused_steps import assert_close, enabled

WORDS, WIDTH = 50, 8
COPIES, ROWS = "GatherV2", "ResourceGather"


def ids(*shape: int) -> np.ndarray:
    """Return numbers of rows, some of them counted from the end."""
    return np.random.default_rng(1).integers(-WORDS, WORDS, shape).astype(np.int32)


def training(layer: keras.layers.Layer, **given: object) -> Callable:
    """Return a function that trains a layer on its own outputs, and returns them."""
    optimizer = keras.optimizers.SGD(0.1)
    layer.build()
    optimizer.build(layer.trainable_variables)

    @tf.function(autograph=False, **given)
    def step(inputs: tf.Tensor) -> tf.Tensor:
        weights = layer.trainable_variables
        with tf.GradientTape() as tape:
            rows = layer(inputs)
            loss = tf.reduce_sum(tf.cast(rows, tf.float32) ** 2)
        if weights:
            gradients = tape.gradient(loss, [each.value for each in weights])
            optimizer.apply(gradients, weights)
        return rows

    return step


def reading_ops(function: tf.types.experimental.PolymorphicFunction, *given) -> set:
    """Return by which operations a function looks rows up."""
    graph = function.get_concrete_function(*given).graph
    return {op.type for op in graph.get_operations()} & {COPIES, ROWS}


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4,), "int32"), ((4, 5), "int64"), ((4, 5), "float32")]
)
def test_rows_and_what_is_learned_are_those_of_keras(shape, dtype) -> None:
    given = tf.constant(ids(*shape), dtype)
    results = []
    for fuse, wanted in (("off", COPIES), ("on", ROWS)):
        with enabled(fuse=fuse):
            keras.utils.set_random_seed(0)
            layer = keras.layers.Embedding(WORDS, WIDTH)
            step = training(layer)
            assert reading_ops(step, given) == {wanted}
            results.append([step(given), step(given), layer.get_weights()[0]])
    assert_close(*results, 0.0)


@pytest.mark.parametrize(
    ("given", "change"),
    [
        ({"dtype": "mixed_bfloat16"}, None),
        ({"dtype": "float64"}, None),
        ({"trainable": False}, None),
        ({"lora_rank": 2}, None),
        ({}, lambda layer: layer.quantize("int8")),
    ],
    ids=["policy", "float64", "frozen", "lora", "quantized"],
)
def test_other_tables_are_read_as_keras_does(given, change) -> None:
    with enabled():
        layer = keras.layers.Embedding(WORDS, WIDTH, **given)
        layer.build()
        if change:
            change(layer)
        assert reading_ops(training(layer), tf.constant(ids(3))) == {COPIES}


def test_so_are_tables_that_are_not_trained_here_or_compiled() -> None:
    with enabled():
        layer = keras.layers.Embedding(WORDS, WIDTH)
        given = tf.constant(ids(3))
        assert reading_ops(tf.function(lambda x: layer(x)), given) == {COPIES}
        assert reading_ops(training(layer, jit_compile=True), given) == {COPIES}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_models_learn_the_same_and_their_plan_says_so(optimizer: str) -> None:
    target = np.ones((32, 1), np.float32)
    results = []
    for fuse in ("off", "row_reads"):
        with enabled(fuse=fuse):
            keras.utils.set_random_seed(0)
            layers = keras.layers
            model = keras.Sequential(
                [
                    layers.Embedding(WORDS, WIDTH),
                    layers.GlobalAveragePooling1D(),
                    layers.Dense(1),
                ]
            )
            model.compile(optimizer, "mse")
            fitted = model.fit(ids(32, 6), target, 8, epochs=2, verbose=0)
            results.append([fitted.history["loss"], *model.get_weights()])

            def step(x, y, model=model):
                return model.train_step((x, y))["loss"]

            plan = tf_amp.explain(tf.function(step), ids(8, 6), target[:8])
            fusions = plan.traced_fusions
            assert [each.rule for each in fusions] == ["row_reads"] * (fuse != "off")
            # Adam changes every row, so that no copy is saved.
            assert all((e.seconds > 0.0) == (optimizer == "sgd") for e in fusions)
    assert_close(*results, 1e-6)


ON_REPLICAS = """
import keras
import numpy as np
import tensorflow as tf
import tf_amp

cpu, = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
IDS = np.random.default_rng(1).integers(-50, 50, (2, 6)).astype(np.int32)

def train(fuse):
    tf_amp.enable(fuse=fuse, tune="off", device_profile="cpu-generic")
    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = keras.layers.Embedding(50, 8)
        layer.build()
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([layer.embeddings])

    @tf.function
    def step(ids):
        def on_replica():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids) ** 2)
            table = layer.embeddings
            optimizer.apply(tape.gradient(loss, [table.value]), [table])
        strategy.run(on_replica)

    for ids in IDS:
        step(ids)
    graph_def = step.get_concrete_function(IDS[0]).graph.as_graph_def()
    bodies = (f.node_def for f in graph_def.library.function)
    ops = [node.op for nodes in (graph_def.node, *bodies) for node in nodes]
    tf_amp.disable()
    table = layer.embeddings.value
    assert np.array_equal(*table.values)
    return ops.count("ResourceGather"), table.numpy()

(without, plain), (rows, weights) = train("off"), train("on")
print(without, rows)
print(np.abs(plain - weights).max() < 1e-6)
"""


def test_each_replica_reads_rows_of_its_own() -> None:
    assert run_forked(ON_REPLICAS).lines() == ["0 2", "True"]
