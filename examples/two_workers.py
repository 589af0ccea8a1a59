"""Train on two workers at once: a MultiWorkerMirroredStrategy over two processes.

Each worker computes the gradients of its half of every batch; both apply their sum, so
that both have the same weights at all times. Nothing in this file knows about mixed
precision. Switch it on from outside, for all workers alike:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/two_workers.py

This starts the two workers on this machine. On machines of your own, start this file on
each of them with the variable ``TF_CONFIG`` set, as TensorFlow describes it.
"""

from collections.abc import Callable

import keras
import local_job
import numpy as np
import tensorflow as tf

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

BATCH = 64
EPOCHS = 10


def main() -> None:
    """Train for ten epochs; the first worker prints how it goes."""
    # Before anything else of TensorFlow's is used.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    # The same order everywhere: each worker takes its share of every batch.
    batches = tf.data.Dataset.from_tensor_slices((train_x, train_y))
    batches = batches.shuffle(2000, seed=1).batch(BATCH, drop_remainder=True)
    batches = strategy.experimental_distribute_dataset(batches)

    model, optimizer = build(strategy)
    train_step = make_step(strategy, model, optimizer)
    is_first = strategy.cluster_resolver.task_id == 0
    for epoch in range(EPOCHS):
        losses = [float(train_step(x, y)) for x, y in batches]
        if is_first:
            print(f"epoch {epoch}: loss {np.mean(losses):.4f}", flush=True)
    if is_first:
        predicted = model(test_x).numpy().argmax(axis=1)
        print(f"final accuracy {(predicted == test_y).mean():.4f}", flush=True)


def build(
    strategy: tf.distribute.Strategy,
) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """Return a multilayer perceptron for images [batch, 64], and its optimizer."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        hidden = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    return model, optimizer


def make_step(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a step of training that both workers take together."""

    def step_of_one(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_sum(losses) / BATCH
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        losses = strategy.run(step_of_one, (x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return train_step


if __name__ == "__main__":
    if local_job.is_task():
        main()
    else:
        local_job.run({"worker": 2})
