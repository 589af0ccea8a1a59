"""Small stored models of every kind, each with inputs for its signature."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

WIDTH = 256
# What their conversions are planned for.
PLANNED = {"device_profile": "cpu-avx512-bf16", "opt_level": "O2", "dtype": "bfloat16"}


def _inputs(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def functional(folder: pathlib.Path) -> dict[str, Any]:
    """Two dense layers, as Keras exports them."""
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    inputs = keras.Input((WIDTH,), name="x")
    hidden = layers.Dense(2 * WIDTH, activation="relu")(inputs)
    model = keras.Model(inputs, layers.Dense(WIDTH)(hidden))
    model.export(str(folder), verbose=False)
    return {"x": _inputs(64, WIDTH)}


def subclassed(folder: pathlib.Path) -> dict[str, Any]:
    """A model with a `call` of its own, and convolutions."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.conv = keras.layers.Conv2D(32, 3, padding="same")
            self.norm = keras.layers.BatchNormalization()
            self.head = keras.layers.Dense(10)

        def call(self, x: Any, training: bool = False) -> Any:
            y = tf.nn.relu(self.norm(self.conv(x), training=training))
            return self.head(tf.reduce_mean(y, [1, 2]))

    model = Net()
    images = _inputs(8, 16, 16, 16)
    model(images)
    model.export(str(folder), verbose=False)
    return {"args_0": images}


def multi_input(folder: pathlib.Path) -> dict[str, Any]:
    """Numbers beside words, which a table turns to ids."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    words = keras.Input((), dtype="string", name="word")
    numbers = keras.Input((WIDTH,), name="number")
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
    embedded = keras.layers.Embedding(4, WIDTH)(lookup(words))
    both = keras.layers.Concatenate()([embedded, numbers])
    model = keras.Model([words, numbers], keras.layers.Dense(2 * WIDTH)(both))
    model.export(str(folder), verbose=False)
    return {
        "word": tf.constant(["a", "c", "?", "b"] * 16),
        "number": _inputs(64, WIDTH),
    }


def lstm(folder: pathlib.Path) -> dict[str, Any]:
    """A recurrent network, whose step is the body of a loop."""
    import keras

    keras.utils.set_random_seed(1)
    inputs = keras.Input((12, 64), name="x")
    states = keras.layers.LSTM(128)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(WIDTH)(states))
    model.export(str(folder), verbose=False)
    return {"x": _inputs(32, 12, 64)}


def ragged(folder: pathlib.Path) -> dict[str, Any]:
    """A table looked up by ragged ids, then a product."""
    import tensorflow as tf

    class Bag(tf.Module):
        def __init__(self) -> None:
            self.table = tf.Variable(_inputs(500, WIDTH))
            self.weights = tf.Variable(_inputs(WIDTH, WIDTH) / WIDTH**0.5)

        @tf.function(
            input_signature=[
                tf.TensorSpec((None,), tf.int64, "ids"),
                tf.TensorSpec((None,), tf.int64, "splits"),
            ]
        )
        def serve(self, ids: Any, splits: Any) -> Any:
            rows = tf.RaggedTensor.from_row_splits(ids, splits)
            embedded = tf.ragged.map_flat_values(
                tf.nn.embedding_lookup, self.table, rows
            )
            return {"y": tf.reduce_mean(embedded, axis=1) @ self.weights}

    bag = Bag()
    tf.saved_model.save(bag, str(folder), signatures=bag.serve)
    splits = np.arange(0, 129, 2, dtype="int64")
    return {"ids": np.arange(128, dtype="int64"), "splits": splits}


def module(folder: pathlib.Path) -> dict[str, Any]:
    """A tf.Module with two signatures, a branch, and an asset."""
    import tensorflow as tf

    asset = folder.with_name(f"{folder.name}_words.txt")
    asset.write_text("a\nb\n")

    class Net(tf.Module):
        def __init__(self) -> None:
            self.weights = tf.Variable(_inputs(WIDTH, WIDTH) / WIDTH**0.5)
            self.constant = tf.constant(_inputs(WIDTH, WIDTH) / WIDTH**0.5)
            self.asset = tf.saved_model.Asset(str(asset))

        @tf.function(input_signature=[tf.TensorSpec((None, WIDTH), name="x")])
        def serve(self, x: Any) -> Any:
            y = tf.nn.relu(x @ self.weights) @ self.constant
            return {"y": tf.cond(tf.reduce_sum(x) > 0, lambda: y @ y, lambda: -y)}

        @tf.function(input_signature=[tf.TensorSpec((64, WIDTH), name="x")])
        def other(self, x: Any) -> Any:
            return {"z": tf.matmul(x, self.weights)}

    net = Net()
    signatures = {"serving_default": net.serve, "other": net.other}
    tf.saved_model.save(net, str(folder), signatures=signatures)
    return {"x": _inputs(WIDTH, WIDTH)}


def session(folder: pathlib.Path) -> dict[str, Any]:
    """A v1 graph with variables, a table and control flow, without default values."""
    import tensorflow as tf

    v1 = tf.compat.v1
    weights = _inputs(WIDTH, WIDTH) / WIDTH**0.5
    with tf.Graph().as_default(), v1.Session() as running:
        v1.disable_control_flow_v2()
        words = v1.placeholder(tf.string, (None,), name="words")
        x = v1.placeholder(tf.float32, (None, WIDTH), name="x")
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], tf.constant([0, 1])), -1
        )
        w = v1.get_variable("w", initializer=weights)
        old = v1.get_variable("old", initializer=weights, use_resource=False)
        scale = tf.cast(table.lookup(words), tf.float32)[:, None]
        y = tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, tf.tanh(y @ w)), (0, x)
        )[1]
        z = v1.cond(tf.reduce_sum(scale) > 0, lambda: y @ w, lambda: y) @ old
        v1.enable_control_flow_v2()
        running.run([v1.global_variables_initializer(), v1.tables_initializer()])
        serve = v1.saved_model.predict_signature_def(
            {"words": words, "x": x}, {"z": z + scale}
        )
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(
            running,
            ["serve"],
            {"serving_default": serve},
            main_op=v1.tables_initializer(),
            clear_devices=True,
            strip_default_attrs=True,
        )
        builder.save()
    return {"words": np.array([b"a", b"b"] * 32), "x": _inputs(64, WIDTH)}


def frozen(path: pathlib.Path) -> dict[str, Any]:
    """A frozen graph, whose weights are constants."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, WIDTH), name="x")
        first = tf.constant(_inputs(WIDTH, 2 * WIDTH) / WIDTH**0.5)
        second = tf.constant(_inputs(2 * WIDTH, WIDTH) / WIDTH**0.5)
        tf.identity(tf.nn.relu(x @ first) @ second, name="y")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return {"x": _inputs(64, WIDTH)}


KINDS: dict[str, Callable[[pathlib.Path], dict[str, Any]]] = {
    make.__name__: make
    for make in (
        functional,
        subclassed,
        multi_input,
        lstm,
        ragged,
        module,
        session,
    )
}
