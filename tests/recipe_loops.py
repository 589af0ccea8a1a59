"""The loops of recipes: state that is carried, and sums over iterations.

Like layers they take and return [batch, width], repeat `count` times and step by
`amount`. Whether a loop becomes Switch and Merge at once (v1) or a functional While
(v2) is the caller's setting of control flow.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tests.recipe_builder import Builder
from tests.recipe_layers import RecipeLayer


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


LOOPS: dict[str, RecipeLayer] = {
    loop.__name__: loop
    for loop in (
        euler,
        power_iteration,
        gated,
        memory,
        sum_of_activations,
        sum_of_gradients,
        discounted,
        inner_steps,
        training_loop,
    )
}
