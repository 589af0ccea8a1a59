"""Train with a ParameterServerStrategy: workers compute, a parameter server remembers.

The coordinator traces a step once and hands it to whichever worker is free; the workers
do not wait for each other. Nothing in this file knows about mixed precision. Switch it
on from outside, for all processes alike:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/parameter_server.py

This starts a coordinator, a worker and a parameter server on this machine. On machines
of your own, start this file on each of them with the variable ``TF_CONFIG`` set, as
TensorFlow describes it.
"""

import itertools
import os
from collections.abc import Iterator

import local_job
import numpy as np
import tensorflow as tf

try:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
except ModuleNotFoundError:
    raise SystemExit("This example needs scikit-learn: pip install '.[demo]'") from None

WIDTHS = (64, 256, 256, 10)
LEARNING_RATE = 0.1
MOMENTUM = 0.9
BATCH = 64
EPOCHS = 10
STEPS_PER_EPOCH = 21


class Mlp:
    """A multilayer perceptron whose variables lie with the parameter servers."""

    def __init__(self) -> None:
        """Make weights, biases and one momentum slot for each."""
        init = tf.random.Generator.from_seed(1)
        self.weights = [
            tf.Variable(init.normal((i, o)) * np.sqrt(2.0 / i).astype("float32"))
            for i, o in itertools.pairwise(WIDTHS)
        ]
        self.biases = [tf.Variable(tf.zeros(width)) for width in WIDTHS[1:]]
        self.slots = [tf.Variable(tf.zeros_like(v)) for v in self.parameters]

    @property
    def parameters(self) -> list[tf.Variable]:
        """Return what is trained."""
        return self.weights + self.biases

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Return scores [batch, 10] of images [batch, 64]."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = tf.nn.relu(tf.matmul(x, weight) + bias)
        return tf.matmul(x, self.weights[-1]) + self.biases[-1]

    @tf.function
    def train_step(self, batches: Iterator[tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
        """Take one step of gradient descent and return the loss before it."""
        x, y = next(batches)
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.logits(x))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.parameters)
        for variable, slot, grad in zip(
            self.parameters, self.slots, gradients, strict=True
        ):
            slot.assign(MOMENTUM * slot + grad)
            variable.assign_sub(LEARNING_RATE * slot)
        return loss


def main() -> None:
    """Serve, or coordinate."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type == "chief":
        coordinate(resolver)
        return
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
    )
    server.join()


def coordinate(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """Train for ten epochs and print the accuracy on images not trained on."""
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def batches() -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).repeat()
        return data.shuffle(2000, seed=1).batch(BATCH)

    with strategy.scope():
        model = Mlp()
    iterator = iter(coordinator.create_per_worker_dataset(batches))
    for epoch in range(EPOCHS):
        steps = range(STEPS_PER_EPOCH)
        given = [coordinator.schedule(model.train_step, (iterator,)) for _ in steps]
        coordinator.join()
        losses = [float(value.fetch()) for value in given]
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}", flush=True)
    predicted = model.logits(tf.constant(test_x)).numpy().argmax(axis=1)
    print(f"final accuracy {(predicted == test_y).mean():.4f}", flush=True)
    # The servers are about to be ended; TensorFlow would wait for them.
    os._exit(0)


if __name__ == "__main__":
    if local_job.is_task():
        main()
    else:
        local_job.run({"ps": 1, "worker": 1, "chief": 1}, serving=("ps", "worker"))
