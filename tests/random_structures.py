"""Random control flow and functions around random layers.

Whether a loop becomes Switch and Merge at once (v1) or a functional While (v2) is the
caller's setting of control flow.
"""

from __future__ import annotations

import tensorflow as tf

from tests import random_keras, random_layers
from tests.random_layers import Builder, Layer, Unary, dense


def same_shape_step(b: Builder, x: tf.Tensor) -> Unary:
    """Return a function that keeps the shape [batch, features]; weights are outside."""
    size = x.shape[-1]
    inner, outer = b.variable(size, 8), b.variable(8, size)
    recurrent = b.variable(size, size)
    choice = b.rng.randrange(4)

    def step(value: tf.Tensor) -> tf.Tensor:
        if choice == 0:
            return tf.tanh(tf.matmul(value, recurrent))
        if choice == 1:
            return value + 0.5 * tf.matmul(tf.nn.relu(tf.matmul(value, inner)), outer)
        if choice == 2:
            update = tf.sigmoid(tf.matmul(value, recurrent))
            return update * value + (1.0 - update) * tf.tanh(value)
        return tf.einsum("bf,fg->bg", tf.nn.softmax(value), recurrent) + 0.1 * value

    return step


def while_loop(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Repeat a step; the count is a constant or known only at run time."""
    step = same_shape_step(b, x)
    count: tf.Tensor | int = b.rng.randint(1, 4)
    if b.rng.random() < 0.3 and b.ids is not None:
        count = 1 + tf.math.floormod(b.ids[0], 3)
    _, y = tf.while_loop(
        lambda i, _: i < count,
        lambda i, value: [i + 1, step(value)],
        [tf.constant(0), x],
        maximum_iterations=b.rng.choice((None, 5)),
    )
    return tf.ensure_shape(y, x.shape)


def two_variable_loop(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Carry a product's result beside a sum that is never multiplied."""
    step = same_shape_step(b, x)

    def body(i: tf.Tensor, value: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        value = step(value)
        return i + 1, value, total + tf.reduce_sum(tf.exp(-tf.square(value)))

    _, y, total = tf.while_loop(
        lambda i, *_: i < 3, body, [tf.constant(0), x, tf.constant(0.0)]
    )
    return tf.ensure_shape(y, x.shape) + 0.01 * total


def nested_loop(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Put a loop in a loop."""
    step = same_shape_step(b, x)

    def body(i: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        _, value = tf.while_loop(
            lambda j, _: j < 2, lambda j, v: (j + 1, step(v)), [tf.constant(0), value]
        )
        return i + 1, tf.tanh(tf.ensure_shape(value, x.shape))

    return tf.while_loop(lambda i, _: i < 2, body, [tf.constant(0), x])[1]


def scan(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Scan a recurrent cell over the first axis, gathered in a list."""
    weight, size = b.variable(x.shape[-1], x.shape[-1]), x.shape[-1]
    initial = tf.zeros([1, size])

    def cell(state: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        return tf.tanh(tf.matmul(state, weight) + tf.reshape(row, [1, size]))

    return tf.reshape(tf.scan(cell, x, initializer=initial), [-1, size])


def map_rows(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Map a product over rows."""
    weight, size = b.variable(x.shape[-1], 8), x.shape[-1]
    y = tf.map_fn(lambda row: tf.matmul(tf.reshape(row, [1, size]), weight), x)
    return tf.reshape(y, [x.shape[0], 8])


def tensor_array_loop(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Write every iteration's value to a TensorArray; read some back in the loop."""
    step = same_shape_step(b, x)
    read_back = b.rng.random() < 0.5
    array = tf.TensorArray(
        tf.float32, size=3, clear_after_read=False, element_shape=x.shape
    )

    def body(
        i: tf.Tensor, value: tf.Tensor, seen: tf.TensorArray
    ) -> tuple[object, ...]:
        value = step(value)
        seen = seen.write(i, value)
        if read_back:
            value = 0.5 * (value + tf.ensure_shape(seen.read(i), x.shape))
        return i + 1, value, seen

    _, y, seen = tf.while_loop(lambda i, *_: i < 3, body, [tf.constant(0), x, array])
    ends = b.rng.choice((tf.reduce_mean, tf.reduce_max))
    return tf.ensure_shape(y, x.shape) + ends(seen.stack(), axis=0)


def recurrence(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Multiply rows of an unstacked TensorArray and a state by weights of all steps."""
    steps, size = b.rng.choice((2, 4)), x.shape[-1]
    rows = tf.reshape(x, [steps, x.shape[0] // steps, size])
    # Small ones do not pay; rules are to apply to the others.
    units = b.rng.choice((8, 128))
    weight, recurrent = b.variable(size, units), b.variable(units, units)
    items = tf.TensorArray(tf.float32, steps, clear_after_read=False).unstack(rows)
    transposes = b.rng.random() < 0.3
    flipped = tf.transpose(weight) if transposes else weight
    last: tf.Tensor | int = steps - 1
    if b.rng.random() < 0.3 and b.ids is not None:
        last = tf.math.floormod(b.ids[0], steps)
    is_masked, is_reversed = b.rng.random() < 0.3, b.rng.random() < 0.3

    def body(i: tf.Tensor, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        row = items.read(last - i if is_reversed else i)
        product = tf.matmul(row, flipped, transpose_b=transposes)
        gates = product + tf.matmul(state, recurrent)
        new = tf.ensure_shape(tf.tanh(gates), state.shape)
        return i + 1, tf.where(row[:, :1] > 0.0, new, state) if is_masked else new

    start = tf.zeros([rows.shape[1], units])
    _, state = tf.while_loop(lambda i, _: i <= last, body, [tf.constant(0), start])
    return tf.tile(tf.ensure_shape(state, start.shape), [steps, 1])


def unstacked_inputs_loop(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Read the rows of an unstacked TensorArray, as Keras' recurrent layers do."""
    if b.rng.random() < 0.7:
        return recurrence(b, x)
    weight, size = b.variable(x.shape[-1], 8), x.shape[-1]
    rows = tf.TensorArray(tf.float32, size=x.shape[0]).unstack(x)
    outputs = tf.TensorArray(tf.float32, size=x.shape[0])

    def body(i: tf.Tensor, filled: tf.TensorArray) -> tuple[object, ...]:
        row = tf.reshape(rows.read(i), [1, size])
        return i + 1, filled.write(i, tf.nn.relu(tf.matmul(row, weight)))

    _, filled = tf.while_loop(
        lambda i, _: i < x.shape[0], body, [tf.constant(0), outputs]
    )
    return tf.reshape(filled.stack(), [x.shape[0], 8])


def training_loop(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Train a small weight in the graph, by matmul or convolution, and apply it."""
    size = x.shape[-1]
    start = b.variable(size, size)
    convolve = b.rng.random() < 0.5
    image = tf.reshape(x, [x.shape[0], 1, 1, size])

    def predict(weight: tf.Tensor) -> tf.Tensor:
        if not convolve:
            return tf.matmul(x, weight)
        kernel = tf.reshape(weight, [1, 1, size, size])
        y = tf.nn.conv2d(image, kernel, strides=1, padding="SAME")
        return tf.reshape(y, [x.shape[0], size])

    def body(i: tf.Tensor, weight: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        loss = tf.reduce_mean(tf.square(predict(weight) - tf.tanh(x)))
        return i + 1, weight - 0.1 * tf.gradients(loss, weight)[0]

    _, weight = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), start])
    # Second derivatives of a v1 loop are not TensorFlow's business.
    return predict(tf.stop_gradient(tf.ensure_shape(weight, [size, size])))


def cond(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Choose one of two branches, of which one may hold no product."""
    assert b.ids is not None
    step = same_shape_step(b, x)
    other = b.rng.choice((step, tf.tanh, lambda t: t * 0.5))
    predicate = tf.equal(tf.math.floormod(b.ids[1], 2), 0)
    return tf.ensure_shape(
        tf.cond(predicate, lambda: step(x), lambda: other(x)), x.shape
    )


def nested_function(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Call a function twice, inlined or not."""
    step = same_shape_step(b, x)
    function = tf.function(step, autograph=False)
    if b.rng.random() < 0.3:
        function = tf.function(
            step, autograph=False, experimental_attributes={"_noinline": True}
        )
    return function(function(x))


def custom_gradient(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Define a gradient that clips."""

    @tf.custom_gradient
    def clipped(value: tf.Tensor) -> tuple[tf.Tensor, Unary]:
        return tf.tanh(value), lambda upstream: tf.clip_by_value(upstream, -0.5, 0.5)

    return dense(b, clipped(x))


def recompute(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Recompute the step in the backward pass."""
    return tf.recompute_grad(same_shape_step(b, x))(x)


def controlled(b: Builder, x: tf.Tensor) -> tf.Tensor:
    """Order a counter's update before the value."""
    y = dense(b, x)
    counter = b.raw_variable(2, scale=1.0)
    update = counter.assign_add(tf.reduce_mean(y) * tf.ones([2]))
    with tf.control_dependencies([update]):
        return tf.identity(y)


# Functions cannot capture v1 reference variables.
FUNCTIONS: tuple[Layer, ...] = (nested_function, recompute)
STRUCTURES: tuple[Layer, ...] = (
    *(while_loop, two_variable_loop, nested_loop, scan, map_rows, tensor_array_loop),
    *(unstacked_inputs_loop, cond, training_loop, custom_gradient, controlled),
)


def choose_layer(b: Builder, x: tf.Tensor, *, structures: float) -> Layer:
    """Pick a layer that takes what `x` is; structures take [batch, features]."""
    rank = len(x.shape)
    if b.has_layers and b.rng.random() < 0.8:
        return b.rng.choice((*random_keras.ANY_RANK, *random_keras.BY_RANK[rank]))
    if rank == 2 and b.rng.random() < structures:
        extra = () if b.ref_variables else FUNCTIONS
        return b.rng.choice((*STRUCTURES, *extra))
    drawn = b.rng.random()
    layers = random_layers
    if drawn < 0.2:
        return b.rng.choice((*layers.SELDOM, *layers.SELDOM_BY_RANK[rank]))
    return b.rng.choice(layers.ANY_RANK if drawn < 0.5 else layers.BY_RANK[rank])
