"""Train with a hand-written loop: a GradientTape inside a ``tf.function``.

Nothing in this file knows about mixed precision. Switch it on from outside:

    TF_ENABLE_AUTO_MIXED_PRECISION=1 python examples/custom_loop.py
"""

import itertools

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


class Mlp(tf.Module):
    """A multilayer perceptron with gradient descent and momentum, by hand."""

    def __init__(self) -> None:
        """Make weights, biases and one momentum slot for each."""
        super().__init__()
        pairs = list(itertools.pairwise(WIDTHS))
        init = tf.random.Generator.from_seed(1)
        self.weights = [
            tf.Variable(init.normal((i, o)) * np.sqrt(2.0 / i).astype("float32"))
            for i, o in pairs
        ]
        self.biases = [tf.Variable(tf.zeros(o)) for _, o in pairs]
        self.slots = [tf.Variable(tf.zeros_like(v)) for v in self.parameters]

    @property
    def parameters(self) -> list[tf.Variable]:
        """Return what is trained."""
        return self.weights + self.biases

    @tf.function
    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """Return scores [batch, 10] of images [batch, 64]."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = tf.nn.relu(tf.matmul(x, weight) + bias)
        return tf.matmul(x, self.weights[-1]) + self.biases[-1]

    @tf.function
    def train_step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Take one step of gradient descent and return the loss before it."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, self.logits(x))
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, self.parameters)
        gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
        for variable, slot, grad in zip(
            self.parameters, self.slots, gradients, strict=True
        ):
            slot.assign(MOMENTUM * slot + grad)
            variable.assign_sub(LEARNING_RATE * slot)
        return loss


def main() -> None:
    """Train for ten epochs and print the accuracy on images not trained on."""
    digits = load_digits()
    images = (digits.data / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.25, random_state=0
    )
    batches = tf.data.Dataset.from_tensor_slices((train_x, train_y))
    batches = batches.shuffle(2000, seed=1).batch(64, drop_remainder=True)
    model = Mlp()
    for epoch in range(10):
        losses = [float(model.train_step(x, y)) for x, y in batches]
        print(f"epoch {epoch}: loss {np.mean(losses):.4f}")
    predicted = model.logits(tf.constant(test_x)).numpy().argmax(axis=1)
    print(f"final accuracy {(predicted == test_y).mean():.4f}")


if __name__ == "__main__":
    main()
