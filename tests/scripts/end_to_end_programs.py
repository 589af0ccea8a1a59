"""Training programs of five kinds, each as a user would write it.

Run as `python end_to_end_programs.py KIND FOLDER`, the environment variable set: each
program runs as it is, then once more after `tf_amp.disable()`, and both are named in
one line of JSON.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

STEPS, BATCH = 60, 128
SPLIT = 1400


class Outcome(NamedTuple):
    """The untrained model's logits, accuracy after training, dtypes of the weights."""

    logits: np.ndarray
    accuracy: float
    dtypes: set[str]


def digits() -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    return (images[order] / 16.0).astype(np.float32), labels[order].astype(np.int32)


X, Y = digits()


def initial(*shape: int) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (random.normal(size=shape) * (2 / shape[0]) ** 0.5).astype(np.float32)


def accuracy_of(logits: np.ndarray) -> float:
    return float(np.mean(np.argmax(logits, axis=1) == Y[SPLIT:]))


def batches() -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(0, SPLIT, BATCH) for _ in range(STEPS)]


class Net(tf.Module):
    """Two layers without any library."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = tf.Variable(initial(64, 128)), tf.Variable(initial(128, 10))

    @tf.function(input_signature=[tf.TensorSpec([None, 64])])
    def logits(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x @ self.w) @ self.v + 0.0

    @tf.function
    def train(self, x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.logits(x))
        variables = (self.w, self.v)
        for variable, gradient in zip(
            variables, tape.gradient(loss, variables), strict=True
        ):
            variable.assign_sub(0.3 / BATCH * gradient)


def trained_by_function(folder: pathlib.Path) -> Outcome:
    net = Net()
    first = net.logits(X[SPLIT:]).numpy()
    for rows in batches():
        net.train(X[rows], Y[rows])
    found = {w.dtype.name for w in net.variables}
    return Outcome(first, accuracy_of(net.logits(X[SPLIT:]).numpy()), found)


def trained_by_keras(folder: pathlib.Path) -> Outcome:
    import keras

    return _fit(keras)


def trained_by_legacy_keras(folder: pathlib.Path) -> Outcome:
    import tf_keras

    return _fit(tf_keras)


def _fit(keras: object) -> Outcome:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Reshape((8, 8, 1), input_shape=(64,)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    first = model.predict(X[SPLIT:], verbose=0)
    model.fit(X[:SPLIT], Y[:SPLIT], batch_size=BATCH, epochs=6, verbose=0)
    found = {tf.as_dtype(w.dtype).name for w in model.trainable_weights}
    return Outcome(first, accuracy_of(model.predict(X[SPLIT:], verbose=0)), found)


def trained_in_session(folder: pathlib.Path) -> Outcome:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        x, y = v1.placeholder(tf.float32, [None, 64]), v1.placeholder(tf.int32, [None])
        w = v1.get_variable("w", initializer=initial(64, 128))
        v = v1.get_variable("v", initializer=initial(128, 10))
        logits = tf.matmul(tf.nn.relu(tf.matmul(x, w)), v) + 0.0
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        train = v1.train.AdamOptimizer(0.01).minimize(tf.reduce_mean(losses))
        saver, path = v1.train.Saver(), str(folder / "weights")
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            first = session.run(logits, {x: X[SPLIT:]})
            for rows in batches():
                session.run(train, {x: X[rows], y: Y[rows]})
            path = saver.save(session, path)
        with v1.Session() as session:
            saver.restore(session, path)
            last = session.run(logits, {x: X[SPLIT:]})
    reader = tf.train.load_checkpoint(path)
    found = {d.name for d in reader.get_variable_to_dtype_map().values()}
    return Outcome(first, accuracy_of(last), found)


def restored(folder: pathlib.Path) -> Outcome:
    net = Net()
    for rows in batches():
        net.train(X[rows], Y[rows])
    tf.saved_model.save(net, str(folder), signatures=net.logits)
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    logits = next(iter(serve(tf.constant(X[SPLIT:])).values())).numpy()
    saved = (folder / "saved_model.pb").read_bytes()
    found = {"clean" if b"tf_amp_cast" not in saved else "rewritten"}
    return Outcome(logits, accuracy_of(logits), found)


PROGRAMS = {
    "function": trained_by_function,
    "keras": trained_by_keras,
    "legacy_keras": trained_by_legacy_keras,
    "session": trained_in_session,
    "saved_model": restored,
}


def main(kind: str, folder: pathlib.Path) -> None:
    program = PROGRAMS[kind]
    mixed = program(folder / "mixed")

    import tf_amp

    plans = tf_amp.plans()
    tf_amp.disable()
    # The line of the autostart would switch it on again.
    os.environ["TF_ENABLE_AUTO_MIXED_PRECISION"] = "0"
    float32 = program(folder / "float32")
    scale = np.abs(float32.logits).max()
    report = {
        "low_products": sum(
            row.is_low and ("MatMul" in row.op or "Conv2D" in row.op)
            for plan in plans
            for row in plan.decisions
        ),
        "plans": len(plans),
        "plans_after_disable": len(tf_amp.plans()),
        "difference": float(np.abs(mixed.logits - float32.logits).max() / scale),
        "mixed": mixed.accuracy,
        "float32": float32.accuracy,
        "dtypes": sorted(mixed.dtypes | float32.dtypes),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
