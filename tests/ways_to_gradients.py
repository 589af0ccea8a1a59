"""Functions of a matrix `w` and a matrix `x` that compute gradients in many ways."""

import tensorflow as tf


def _total(x, w):
    return tf.reduce_sum(tf.tanh(x @ w))


def of_weights_and_inputs(w, x):
    with tf.GradientTape() as tape:
        tape.watch([w, x])
        loss = _total(x, w)
    return tape.gradient(loss, {"w": w, "x": [x]})


def with_a_gradient_penalty(w, x):
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = _total(x, w)
        slopes = inner.gradient(loss, x)
        penalty = tf.reduce_mean((tf.norm(slopes, axis=1) - 1) ** 2)
    return outer.gradient(penalty, w)


def with_a_persistent_tape(w, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([w, x])
        first, second = _total(x, w), tf.reduce_sum(x * x)
    return (
        tape.gradient(first, w),
        tape.gradient(second, [x, w]),
        tape.gradient([first, second], [w, x]),
        tape.gradient(second, w, unconnected_gradients="zero"),
    )


def as_a_jacobian(w, x):
    with tf.GradientTape() as tape:
        tape.watch(w)
        y = tf.reduce_sum(tf.tanh(x @ w), 0)
    return tape.jacobian(y, w)


def as_a_jacobian_in_a_loop(w, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        y = tf.reduce_sum(tf.tanh(x @ w), 0)
    return tape.jacobian(y, w, experimental_use_pfor=False)


def as_a_batch_jacobian(w, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x @ w)
    return tape.batch_jacobian(y, x)


def as_a_jacobian_of_a_jacobian(w, x):
    row = x[0]
    with tf.GradientTape() as outer:
        outer.watch(row)
        with tf.GradientTape() as inner:
            inner.watch(row)
            y = tf.linalg.matvec(w, tf.tanh(row))
        slopes = inner.jacobian(y, row)
    return outer.jacobian(slopes, row)


def per_example(w, x):
    def of_one(row):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = _total(row[None], w)
        return tape.gradient(loss, w)

    return tf.vectorized_map(of_one, x)


def with_recomputation(w, x):
    layer = tf.recompute_grad(lambda value: tf.tanh(value @ w))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(layer(x)))
    return tape.gradient(loss, x)


def with_a_custom_gradient(w, x):
    @tf.custom_gradient
    def doubled_slope(value):
        return tf.tanh(value), lambda upstream: 2 * upstream

    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_sum(doubled_slope(x @ w))
    return tape.gradient(loss, w)


def from_given_gradients(w, x):
    with tf.GradientTape() as tape:
        tape.watch([w, x])
        y = tf.tanh(x @ w)
    return tape.gradient(y, [w, x], output_gradients=x)


def in_a_loop(w, x):
    total = tf.zeros_like(w)
    for factor in tf.range(1, 4):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = _total(x * tf.cast(factor, tf.float32), w)
        total += tape.gradient(loss, w)
    return total


def in_a_branch(w, x):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.cond(x[0, 0] > 0, lambda: _total(x, w), lambda: _total(-x, w))
    return tape.gradient(loss, w)


def in_a_nested_function(w, x):
    @tf.function
    def slopes(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = _total(x, value)
        return tape.gradient(loss, value)

    return slopes(w)


def of_a_nested_function(w, x):
    layer = tf.function(lambda value: tf.tanh(value @ w))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(layer(layer(x)))
    return tape.gradient(loss, x)


def of_rows(w, x):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_sum(tf.gather(w, [1, 1, 3]) ** 2)
    slices = tape.gradient(loss, w)
    assert isinstance(slices, tf.IndexedSlices)
    return tf.convert_to_tensor(slices), slices.values, slices.indices


def of_other_types(w, x):
    values = [tf.cast(x, kind) for kind in (tf.float16, tf.bfloat16, tf.float64)]
    values.append(tf.complex(x, w[:4]))
    whole = tf.cast(x, tf.int32)
    with tf.GradientTape() as tape:
        tape.watch([*values, x])
        losses = [tf.reduce_sum(value * value) for value in values]
        losses += [tf.reduce_sum(whole), tf.reduce_sum(x)]
    return tape.gradient(losses, [*values, x])


def of_a_ragged_tensor(w, x):
    ragged = tf.RaggedTensor.from_row_splits(x[:, 0], [0, 1, 4])
    with tf.GradientTape() as tape:
        tape.watch(ragged.flat_values)
        loss = tf.reduce_sum(ragged * ragged)
    return tape.gradient(loss, ragged.flat_values)


EVERYWHERE = (
    of_weights_and_inputs,
    with_a_gradient_penalty,
    with_a_persistent_tape,
    as_a_jacobian,
    as_a_jacobian_in_a_loop,
    as_a_batch_jacobian,
    as_a_jacobian_of_a_jacobian,
    per_example,
    with_recomputation,
    with_a_custom_gradient,
    from_given_gradients,
    in_a_loop,
    in_a_branch,
    in_a_nested_function,
    of_a_nested_function,
    of_rows,
    of_other_types,
    of_a_ragged_tensor,
)


def by_tf_gradients(w, x):
    y = tf.tanh(x @ w)
    return (
        tf.gradients(tf.reduce_sum(y), [w, x]),
        tf.gradients([y, x * x], [x], grad_ys=[None, x]),
        tf.gradients(y, [w], stop_gradients=[x], grad_ys=[x]),
        tf.gradients(tf.reduce_sum(w), [x], unconnected_gradients="zero"),
        tf.compat.v1.gradients(y, tf.convert_to_tensor(w)),
    )


def by_nested_tf_gradients(w, x):
    slopes = tf.gradients(tf.reduce_sum(tf.tanh(x @ w)), x)[0]
    return tf.gradients(slopes * slopes, w)


def as_hessians(w, x):
    small = w[:2, :2]
    return tf.hessians(tf.reduce_sum(tf.tanh(small @ small)), small)


IN_FUNCTIONS = (*EVERYWHERE, by_tf_gradients, by_nested_tf_gradients, as_hessians)
# A `tf.Graph` has no AutoGraph, which makes loops of Python's.
IN_SESSIONS = tuple(way for way in IN_FUNCTIONS if way is not in_a_loop)


def through_python(w, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.py_function(lambda value: tf.sqrt(value), [x**2], tf.float32)
        loss = tf.reduce_sum(tf.reshape(y, [4, 8]) @ w)
    return tape.gradient(loss, x)


def _of_a_call(layer, x):
    # The backward pass is traced when the function is called.
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.function(layer)(x)
    return tape.gradient(y, x)


def of_a_call_that_recomputes(w, x):
    recomputed = tf.recompute_grad(tf.tanh)
    return _of_a_call(lambda value: recomputed(recomputed(value)), x + w[:4])


@tf.custom_gradient
def _twice(x):
    @tf.function
    def slope(x, upstream):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.tanh(tf.tanh(x))
        return tape.gradient(y, x, output_gradients=upstream)

    return tf.tanh(tf.tanh(x)), lambda upstream: slope(x, upstream)


def of_a_call_whose_gradient_takes_another(w, x):
    return _of_a_call(_twice, x + w[:4])


OF_CALLS = (of_a_call_that_recomputes, of_a_call_whose_gradient_takes_another)
