"""How recipes end: a loss, and what is done with its gradients."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tests.recipe_builder import Builder
from tests.recipe_parts import by_name

Loss = Callable[[Builder, tf.Tensor, float], tf.Tensor]
Training = Callable[[Builder, tf.Tensor, float], None]
Pairs = list[tuple[tf.Tensor, tf.Variable]]
# A power of two, by which nothing is rounded.
_LOSS_SCALE = 128.0


def mean(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Average."""
    return tf.reduce_mean(z)


def squared_error(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Square the distance to targets around `amount`."""
    return tf.reduce_mean(tf.square(z - b.data(b.batch, b.width, offset=amount)))


def clipped_logarithm(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Take cross-entropy by hand, clipped as Keras did it."""
    p = tf.clip_by_value(tf.sigmoid(4.0 * z), 1e-7, 1.0 - 1e-7)
    wanted = b.feed(lambda rng: rng.integers(0, 2, z.shape).astype("float32"))
    both = wanted * tf.math.log(p) + (1.0 - wanted) * tf.math.log(1.0 - p)
    return -tf.reduce_mean(both)


def squashing_correction(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Take the logarithm of the slope of tanh, as for squashed policies."""
    return tf.reduce_mean(tf.math.log(1.0 - tf.tanh(2.0 * z) ** 2 + 1e-6))


def nearly_one(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Take the logarithm of what 0.999 leaves."""
    return -tf.reduce_mean(tf.math.log(1.0 - 0.999 * tf.sigmoid(z)))


def cross_entropy(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Compare with labels."""
    labels = b.feed(lambda rng: rng.integers(0, b.width, b.batch).astype("int32"))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=z)
    return tf.reduce_mean(losses)


def divergence(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Compare two distributions."""
    p, q = tf.nn.log_softmax(z), tf.nn.log_softmax(b.data(b.batch, b.width))
    return tf.reduce_mean(tf.reduce_sum(tf.exp(q) * (q - p), axis=-1))


def cosine(b: Builder, z: tf.Tensor, amount: float) -> tf.Tensor:
    """Compare directions."""
    wanted = tf.math.l2_normalize(b.data(b.batch, b.width), axis=-1)
    return 1.0 - tf.reduce_mean(
        tf.reduce_sum(tf.math.l2_normalize(z, axis=-1) * wanted, axis=-1)
    )


def gradients(b: Builder, loss: tf.Tensor, amount: float) -> None:
    """Fetch the gradients."""
    for gradient, variable in _pairs(b, loss):
        b.fetch(gradient, f"gradient_of_{variable.op.name}")


def descent(b: Builder, loss: tf.Tensor, amount: float) -> None:
    """Step down by hand and read the new values again."""
    for gradient, variable in _pairs(b, loss):
        new = variable - amount * gradient
        _assign(b, variable, new, gradient)
        b.fetch(_used(b, new), "with_new")


def momentum(b: Builder, loss: tf.Tensor, amount: float) -> None:
    """Step down by momentum of one's own, whose value is read again."""
    for gradient, variable in _pairs(b, loss):
        speed = b.state(*variable.shape)
        moved = 0.9 * speed + gradient
        _assign(b, speed, moved, gradient)
        _assign(b, variable, variable - amount * moved, gradient)


def moving_average(b: Builder, loss: tf.Tensor, amount: float) -> None:
    """Average weights, and use the average at once, as a momentum encoder does."""
    for gradient, variable in _pairs(b, loss):
        average = b.state(*variable.shape, scale=0.1)
        new = 0.999 * average + 0.001 * variable
        _assign(b, average, new, gradient)
        b.fetch(_used(b, new), "with_average")


def optimizer(b: Builder, loss: tf.Tensor, amount: float) -> None:
    """Let TensorFlow's own optimizer step down by momentum."""
    pairs = _pairs(b, loss)
    if not pairs:
        # Integers, or steps within a loop, let no gradient through.
        return
    made = tf.compat.v1.train.MomentumOptimizer(amount, 0.9)
    with tf.control_dependencies([g for g, _ in pairs] + b.fetches):
        b.targets.append(made.apply_gradients(pairs))


def _used(b: Builder, value: tf.Tensor) -> tf.Tensor:
    """Multiply by a new weight, where it is a matrix of that height."""
    if len(value.shape) == 2 and value.shape[0] == b.width:
        return tf.matmul(b.data(b.batch, b.width), value)
    return tf.tanh(value)


def _assign(
    b: Builder, variable: tf.Variable, value: tf.Tensor, gradient: tf.Tensor
) -> None:
    """Write a variable once all that reads its old value has done so."""
    with tf.control_dependencies([value, gradient, *b.fetches]):
        b.targets.append(variable.assign(value).op)


def _pairs(b: Builder, loss: tf.Tensor) -> Pairs:
    """Return dense gradients, each once all of them are there.

    They come scaled through the graph, so that float16 holds them.
    """
    trained = list(b.weights)
    found = tf.gradients(loss, trained, grad_ys=tf.fill(loss.shape, _LOSS_SCALE))
    pairs = [
        (tf.convert_to_tensor(gradient), variable)
        for gradient, variable in zip(found, trained, strict=True)
        if gradient is not None
    ]
    with tf.control_dependencies([gradient for gradient, _ in pairs]):
        return [(gradient / _LOSS_SCALE, variable) for gradient, variable in pairs]


LOSSES: dict[str, Loss] = by_name(
    *(mean, squared_error, clipped_logarithm, squashing_correction, nearly_one),
    *(cross_entropy, divergence, cosine),
)
TRAINING: dict[str, Training] = by_name(
    *(gradients, descent, momentum, moving_average, optimizer)
)
