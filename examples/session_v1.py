"""Train in a ``tf.compat.v1.Session``, save, restore in another Session, evaluate.

Nothing in this file knows about mixed precision. Switch it on from outside:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/session_v1.py
"""

import tempfile
from typing import NamedTuple

import numpy as np
import tensorflow as tf

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

v1 = tf.compat.v1


class Net(NamedTuple):
    """What the Sessions feed and run."""

    x: tf.Tensor
    y: tf.Tensor
    loss: tf.Tensor
    predicted: tf.Tensor
    train: tf.Operation


def dense(name: str, x: tf.Tensor, units: int) -> tf.Tensor:
    """Return ``x`` times a new variable plus a bias."""
    with v1.variable_scope(name):
        start = v1.keras.initializers.he_normal(seed=1)
        weight = v1.get_variable("weight", (x.shape[-1], units), initializer=start)
        bias = v1.get_variable("bias", units, initializer=v1.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, weight), bias)


def build_net() -> Net:
    """Build a three-layer perceptron trained by Adam in the default graph."""
    x = v1.placeholder(tf.float32, (None, 64), name="x")
    y = v1.placeholder(tf.int32, (None,), name="y")
    hidden = tf.nn.relu(dense("first", x, 256))
    hidden = tf.nn.relu(dense("second", hidden, 256))
    logits = dense("third", hidden, 10)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    loss = tf.reduce_mean(losses)
    train = v1.train.AdamOptimizer(1e-3).minimize(loss)
    return Net(x, y, loss, tf.argmax(logits, axis=1), train)


def train(net: Net, x: np.ndarray, y: np.ndarray, path: str) -> str:
    """Train for ten epochs and return the path of the checkpoint."""
    order = np.random.default_rng(1)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for epoch in range(10):
            for rows in np.array_split(order.permutation(len(x)), len(x) // 64):
                feed = {net.x: x[rows], net.y: y[rows]}
                loss, _ = session.run((net.loss, net.train), feed)
            print(f"epoch {epoch}: last loss {loss:.4f}")
        return v1.train.Saver().save(session, path)


def main() -> None:
    """Train, restore the checkpoint in a second Session, print its accuracy."""
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, digits.target, test_size=0.25, random_state=0
    )
    with tf.Graph().as_default(), tempfile.TemporaryDirectory() as folder:
        net = build_net()
        checkpoint = train(net, train_x, train_y, f"{folder}/model")
        with v1.Session() as session:
            v1.train.Saver().restore(session, checkpoint)
            predicted = session.run(net.predicted, {net.x: test_x})
    print(f"final accuracy {(predicted == test_y).mean():.4f}")


if __name__ == "__main__":
    main()
