"""What recipes begin with, their layers and loops: [batch, width] of magnitude one.

Layers and loops take `count`, how often they repeat something, and `amount`, how much
of it. Whether a loop becomes Switch and Merge at once (v1) or a functional While (v2)
is the caller's setting of control flow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tests.recipe_builder import Builder

RecipeLayer = Callable[[Builder, tf.Tensor, int, float], tf.Tensor]
# Beyond what 16 bits can distinguish.
IDS = 5000


def plain(b: Builder) -> tf.Tensor:
    """Feed data as it is."""
    return b.data(b.batch, b.width)


def shifted(b: Builder) -> tf.Tensor:
    """Bring raw numbers around 2000 to magnitude one."""
    return (b.data(b.batch, b.width, scale=8.0, offset=2000.0) - 2000.0) / 8.0


def pixels(b: Builder) -> tf.Tensor:
    """Bring bytes to 0..1."""
    shape = (b.batch, b.width)
    raw = b.feed(lambda rng: rng.integers(0, 256, shape).astype(np.float32))
    return raw / 255.0


def counted(b: Builder) -> tf.Tensor:
    """Count batches whenever whole numbers become floating ones."""
    shape = (b.batch, b.width)
    raw = b.feed(lambda rng: rng.integers(-2, 3, shape).astype(np.int8))
    with tf.control_dependencies([b.state().assign_add(1.0)]):
        return tf.cast(raw, tf.float32)


def angles(b: Builder) -> tf.Tensor:
    """Make sines and cosines of positions up to 5000."""
    return _angles(b, lambda places, pace: places[:, tf.newaxis] * pace)


def outer_angles(b: Builder) -> tf.Tensor:
    """Make the same of an outer product that einsum writes."""
    return _angles(b, lambda places, pace: tf.einsum("i,j->ij", places, pace))


def _angles(b: Builder, product: Callable[..., tf.Tensor]) -> tf.Tensor:
    places = b.feed(lambda rng: rng.integers(0, IDS, b.batch).astype(np.float32))
    pace = tf.constant(10.0 ** -np.linspace(0.0, 3.0, b.width // 2), tf.float32)
    turns = product(places, pace)
    return tf.concat([tf.sin(turns), tf.cos(turns)], axis=1)


def whole(b: Builder) -> tf.Tensor:
    """Take the whole part of data."""
    return 0.1 * tf.floor(b.data(b.batch, b.width, scale=10.0))


def nearest(b: Builder) -> tf.Tensor:
    """Round data to whole numbers."""
    return 0.1 * tf.round(b.data(b.batch, b.width, scale=10.0))


def remainder(b: Builder) -> tf.Tensor:
    """Take what division of data by 7 leaves."""
    return tf.math.floormod(b.data(b.batch, b.width, scale=300.0), 7.0) - 3.5


def equality(b: Builder) -> tf.Tensor:
    """Compare ids that are held as floating numbers, and use them as data, too."""
    size = b.batch * b.width
    raw = b.feed(lambda rng: (4000 + rng.integers(0, 8, size)).astype(np.float32))
    ids = tf.reshape(raw, [b.batch, b.width])
    b.fetch(tf.equal(ids, ids[:, :1]), "equal")
    return ids / 4096.0


def one_hot(b: Builder) -> tf.Tensor:
    """Mark the place of an id."""
    ids = b.feed(lambda rng: rng.integers(0, b.width, b.batch).astype(np.int32))
    return tf.one_hot(ids, b.width)


def embedding(b: Builder) -> tf.Tensor:
    """Look rows up in a table."""
    ids = b.feed(lambda rng: rng.integers(0, 50, b.batch).astype(np.int32))
    return tf.nn.embedding_lookup(b.weight(50, b.width, scale=1.0), ids)


def returns(b: Builder) -> tf.Tensor:
    """Sum 200 discounted rewards up from the last, one after the other."""
    rewards = tf.unstack(b.data(200, b.batch, b.width))
    total = rewards[-1]
    for reward in rewards[-2::-1]:
        total = reward + 0.99 * total
    b.fetch(total, "returns")
    return 0.1 * total


ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "linear": tf.identity,
    "relu": tf.nn.relu,
    "tanh": tf.tanh,
    "sigmoid": tf.sigmoid,
    "gelu": tf.nn.gelu,
    "silu": tf.nn.silu,
    "softplus": tf.nn.softplus,
}


def dense(
    activation: Callable[[tf.Tensor], tf.Tensor],
) -> RecipeLayer:
    """Return a layer with a bias around `amount`."""

    def layer(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
        product = tf.matmul(x, b.weight(b.width, b.width))
        bias = b.weight(b.width, scale=0.1, offset=amount)
        return activation(tf.nn.bias_add(product, bias))

    return layer


def residual(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Add `count` small steps, each with a weight of its own."""
    for _ in range(count):
        x = x + amount * tf.tanh(tf.matmul(x, b.weight(b.width, b.width)))
    return x


def layer_normalization(
    b: Builder, x: tf.Tensor, count: int, amount: float
) -> tf.Tensor:
    """Normalize rows, with gain and offset."""
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    gain, offset = (
        b.weight(b.width, scale=0.1, offset=1.0),
        b.weight(b.width, scale=0.1),
    )
    return (x - mean) * tf.math.rsqrt(variance + 1e-3) * gain + offset


def batch_normalization(
    b: Builder, x: tf.Tensor, count: int, amount: float
) -> tf.Tensor:
    """Normalize columns and move the averages, which are fetched."""
    mean, variance = tf.nn.moments(x, axes=[0])
    for moment, role in ((mean, "mean"), (variance, "variance")):
        average = b.state(b.width)
        moved = 0.9 * average + 0.1 * moment
        b.fetch(moved, role)
        with tf.control_dependencies([moved]):
            b.targets.append(average.assign(moved).op)
    gain = b.weight(b.width, scale=0.1, offset=1.0)
    return tf.nn.batch_normalization(x, mean, variance, None, gain, 1e-3)


def attention(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Let rows attend to earlier rows."""
    q, k, v = (tf.matmul(x, b.weight(b.width, b.width)) for _ in range(3))
    scores = tf.matmul(q, k, transpose_b=True) * b.width**-0.5
    later = tf.constant(1.0 - np.tri(b.batch), tf.float32)
    return tf.matmul(tf.nn.softmax(scores + later * -1e9), v)


def softmax(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Take the softmax of rows."""
    return 4.0 * tf.nn.softmax(x)


def convolution(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Convolve each row as an image of 4 by 4 pixels."""
    channels = b.width // 16
    image = tf.reshape(x, [b.batch, 4, 4, channels])
    y = tf.nn.conv2d(image, b.weight(3, 3, channels, channels), 1, "SAME")
    y = tf.nn.relu(tf.nn.bias_add(y, b.weight(channels, scale=0.1)))
    return tf.reshape(y, [b.batch, b.width])


def outer(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Add the outer product of a column and a vector."""
    return x + 0.1 * tf.einsum("i,j->ij", x[:, 0], b.weight(b.width, scale=1.0))


def narrow(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Multiply a column by a row: a product whose inner size is 1."""
    return x + 0.1 * tf.matmul(x[:, :1], b.weight(1, b.width))


def statistics(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch what a product's values are on average, and how they scatter."""
    y = tf.matmul(x, b.weight(b.width, b.width))
    b.fetch(tf.reduce_mean(y), "mean")
    b.fetch(tf.math.reduce_std(y, axis=0), "deviation")
    return y


def argmax(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch where rows are largest."""
    b.fetch(tf.argmax(x, axis=-1), "argmax")
    return x


def comparison(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch which values are positive."""
    b.fetch(x > 0.0, "comparison")
    return x


def integers(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Fetch values quantized to integers."""
    b.fetch(tf.cast(tf.floor(x * 16.0), tf.int32), "floor")
    b.fetch(tf.cast(x * 16.0, tf.int32), "integers")
    return x


def scaled(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Multiply all by one number."""
    return amount * x


def repeat(
    count: int, body: Callable[..., tuple[tf.Tensor, ...]], *state: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Return the state after `count` times `body(i, *state)`, `i` a float."""
    _, *last = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, *now: [i + 1, *body(tf.cast(i, tf.float32), *now)],
        [tf.constant(0), *state],
        maximum_iterations=count,
        # Reads of variables are then in step with their updates.
        parallel_iterations=1,
    )
    return tuple(tf.ensure_shape(t, s.shape) for t, s in zip(last, state, strict=True))


def euler(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Carry a state in small steps."""
    w = b.weight(b.width, b.width)
    return repeat(count, lambda _, s: (s + amount * tf.tanh(tf.matmul(s, w)),), x)[0]


def power_iteration(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Multiply and normalize rows again and again."""
    w = b.weight(b.width, b.width)
    both = 0.5 * (w + tf.transpose(w))

    def body(_: tf.Tensor, s: tf.Tensor) -> tuple[tf.Tensor]:
        moved = s + tf.matmul(s, both)
        return (moved * tf.math.rsqrt(tf.reduce_mean(moved**2, -1, keepdims=True)),)

    return repeat(min(count, 20), body, x)[0]


def gated(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Run a gated recurrent unit on the same input."""
    gates = [b.weight(2 * b.width, b.width) for _ in range(3)]

    def body(_: tf.Tensor, s: tf.Tensor) -> tuple[tf.Tensor]:
        seen = tf.concat([x, s], axis=1)
        update, reset = (tf.sigmoid(tf.matmul(seen, g)) for g in gates[:2])
        new = tf.tanh(tf.matmul(tf.concat([x, reset * s], axis=1), gates[2]))
        return ((1.0 - update) * s + update * new,)

    return repeat(count, body, tf.zeros_like(x))[0]


def memory(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Run a cell with long and short memory on the same input."""
    gates = b.weight(2 * b.width, 4 * b.width)

    def body(
        _: tf.Tensor, hidden: tf.Tensor, cell: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        product = tf.matmul(tf.concat([x, hidden], axis=1), gates)
        enter, forget, leave, new = tf.split(product, 4, axis=1)
        cell = tf.sigmoid(forget + 1.0) * cell + tf.sigmoid(enter) * tf.tanh(new)
        return tf.sigmoid(leave) * tf.tanh(cell), cell

    zeros = tf.zeros_like(x)
    hidden, cell = repeat(count, body, zeros, zeros)
    b.fetch(cell, "cell")
    return hidden


def sum_of_activations(
    b: Builder, x: tf.Tensor, count: int, amount: float
) -> tf.Tensor:
    """Sum what a layer returns for inputs that change a little."""
    w = b.weight(b.width, b.width)

    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor]:
        return (total + tf.sigmoid(tf.matmul(x * (1.0 + 0.01 * i), w)),)

    total = repeat(count, body, tf.zeros_like(x))[0]
    b.fetch(total, "sum")
    return total / count


def sum_of_gradients(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Sum the gradients of a layer over batches that change a little."""
    w = b.weight(b.width, b.width)

    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor]:
        seen = x * (1.0 + 0.01 * i)
        z = tf.sigmoid(tf.matmul(seen, w))
        error = (z - 0.2) * z * (1.0 - z)
        return (total + tf.matmul(seen, error, transpose_a=True),)

    total = repeat(count, body, tf.zeros_like(w))[0]
    b.fetch(total, "sum")
    return x


def discounted(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Sum discounted rewards up that a product makes."""
    rewards = tf.matmul(x, b.weight(b.width, b.width))

    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor]:
        return (rewards * tf.cos(0.01 * i) + 0.99 * total,)

    total = repeat(count, body, tf.zeros_like(x))[0]
    b.fetch(total, "returns")
    return 0.01 * total


def inner_steps(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Learn fast weights by `count` steps, unrolled, and predict with them."""
    fast = b.weight(b.width, b.width)
    wanted = b.data(b.batch, b.width)
    for _ in range(min(count, 8)):
        loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, fast)) - wanted))
        fast = fast - amount * tf.gradients(loss, fast)[0]
    b.fetch(fast, "fast")
    return tf.tanh(tf.matmul(x, fast))


def training_loop(b: Builder, x: tf.Tensor, count: int, amount: float) -> tf.Tensor:
    """Train a variable within a loop; every iteration reads its new value."""
    variable = b.state(b.width, b.width, scale=b.width**-0.5)
    x = tf.stop_gradient(x)

    def body(i: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor]:
        # Of a reference it is the buffer itself, which updates change.
        w = variable.value()
        z = tf.tanh(tf.matmul(x, w))
        error = (z - 0.2) * (1.0 - z * z)
        step = tf.matmul(x, error, transpose_a=True) / b.batch
        with tf.control_dependencies([variable.assign_sub(amount * step)]):
            return (total + tf.reduce_mean(error**2),)

    loss = repeat(count, body, tf.zeros([]))[0]
    b.fetch(loss, "losses")
    with tf.control_dependencies([loss]):
        return tf.matmul(x, variable.read_value())


def by_name(*parts: Callable) -> dict[str, Callable]:
    """Return functions by their names."""
    return {part.__name__: part for part in parts}


INPUTS: dict[str, Callable[[Builder], tf.Tensor]] = by_name(
    *(plain, shifted, pixels, counted, angles, outer_angles, whole, nearest),
    *(remainder, equality, one_hot, embedding, returns),
)
LAYERS: dict[str, RecipeLayer] = {
    **{name: dense(activation) for name, activation in ACTIVATIONS.items()},
    **by_name(
        *(residual, layer_normalization, batch_normalization, attention, softmax),
        *(convolution, outer, narrow, statistics, argmax, comparison, integers),
        scaled,
    ),
}
LOOPS: dict[str, RecipeLayer] = by_name(
    *(euler, power_iteration, gated, memory, sum_of_activations, sum_of_gradients),
    *(discounted, inner_steps, training_loop),
)
