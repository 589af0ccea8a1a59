"""The graphs with which TensorFlow tests its own pass, built again.

From `python/grappler/auto_mixed_precision_test.py` and
`core/grappler/optimizers/auto_mixed_precision_test.cc` of TensorFlow: small layers
whose gradients are fetched and no optimizer takes, loops of frames, lists of tensors,
and one function between two products. What is there once for each kind of device is
here once; what is constant there is fed here, so that nothing is folded away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs_of_users.building import UserProgram, ids, normal, uniform, weight

Function = Callable[..., tf.Tensor]
_SIZE = 32
_MATRIX = normal(_SIZE, _SIZE, scale=_SIZE**-0.5)
# What the functions are that stand between two products, and the numbers they get.
_FUNCTIONS: dict[str, tuple[Function, float, float]] = {
    "elu": (tf.nn.elu, -5, 5),
    "erf": (tf.math.erf, -5, 5),
    "erfc": (tf.math.erfc, -5, 5),
    "inv": (lambda x: tf.raw_ops.Inv(x=x), 0.01, 10),
    "log": (tf.math.log, 0.01, 10),
    "log1p": (tf.math.log1p, -0.99, 9),
    "log_softmax": (tf.nn.log_softmax, -8, 8),
    "reciprocal": (tf.math.reciprocal, 0.01, 10),
    "sigmoid": (tf.sigmoid, -5, 5),
    "softmax": (tf.nn.softmax, -8, 8),
    "softplus": (tf.nn.softplus, -5, 5),
    "sqrt": (tf.sqrt, 0, 10),
    "tanh": (tf.tanh, -5, 5),
}
# Which ops stand before a loop, in it and behind it: their lists, by first letters.
_COLORED_LOOPS = (
    ("a", "c", "c"),
    ("c", "c", "a"),
    ("a", "i", "a"),
    ("a", "idi", "a"),
    ("d", "iac", "c"),
    ("d", "caci", "c"),
    ("c", "iaci", "c"),
    ("c", "cidiac", "i"),
)
_BY_COLOR: dict[str, Function] = {
    "a": lambda x: x @ weight(8, 8),
    "i": lambda x: x + 0.1,
    "c": tf.nn.relu,
    "d": lambda x: tf.sqrt(tf.pow(x, 2.0)),
}


def _with_gradients(value: Function, *inputs: tf.Tensor) -> list[tf.Tensor]:
    """Return a value, and its gradients by the inputs and all weights used."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = value(*inputs)
    return [result, *tape.gradient(result, [*inputs, *tape.watched_variables()])]


def _differentiated(
    value: Function, *shape: int, in_v1_graph: bool = False, iterations: int = 1
) -> UserProgram:
    """Return a function of one input together with its gradients."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        if not in_v1_graph:
            return _with_gradients(value, x)
        result = value(x)
        sources = [x, *tf.compat.v1.trainable_variables()]
        return [result, *(g for g in tf.gradients(result, sources) if g is not None)]

    return UserProgram(
        step, (normal(*shape),), iterations=iterations, in_v1_graph=in_v1_graph
    )


def _convolution_and_norm(filters: int = 6) -> Function:
    kernel, scale, offset = weight(3, 3, 1, filters), weight(filters), weight(filters)

    def layer(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.conv2d(tf.reshape(x, (-1, 8, 8, 1)), kernel, 1, "SAME")
        return tf.compat.v1.nn.fused_batch_norm(y, scale, offset)[0]

    return layer


def convolutions_and_norms() -> UserProgram:
    """Return two convolutions, each with a norm of its batch."""
    first, second = _convolution_and_norm(), _convolution_and_norm()
    return UserProgram(lambda x: second(first(x)), (normal(2, 8, 8, 1),))


def convolutions_of_volumes_and_norms() -> UserProgram:
    """Return two convolutions of volumes, each with a norm of its batch."""
    kernels, scale, offset = [weight(3, 3, 3, 1, 6)] * 2, weight(6), weight(6)

    def step(x: tf.Tensor) -> tf.Tensor:
        for kernel in kernels:
            x = tf.reshape(x, (-1, 8, 8, 8, 1))
            x = tf.nn.conv3d(x, kernel, [1] * 5, "SAME")
            x = tf.reshape(x, (-1, 8, 8, 6))
            x = tf.compat.v1.nn.fused_batch_norm(x, scale, offset)[0]
        return x

    return UserProgram(step, (normal(1, 8, 8, 8, 1),))


def convolution_of_volumes() -> UserProgram:
    """Return a convolution of volumes and its gradients."""
    kernel = weight(3, 3, 3, 1, 6)
    return _differentiated(
        lambda x: tf.nn.conv3d(x, kernel, [1] * 5, "SAME"), 2, 8, 8, 8, 1
    )


def convolution_per_channel() -> UserProgram:
    """Return a depthwise convolution and its gradients."""
    kernel = weight(1, 1, 3, 2)
    return _differentiated(
        lambda x: tf.nn.depthwise_conv2d(x, kernel, [1] * 4, "VALID"), 2, 8, 8, 3
    )


def convolutions_norms_and_dropout() -> UserProgram:
    """Return two convolutions with norms, dropout and a sum between them."""
    first, second = _convolution_and_norm(), _convolution_and_norm()

    def value(x: tf.Tensor) -> tf.Tensor:
        keeps = tf.nn.experimental.stateless_dropout(first(x), 0.5, seed=(0, 1))
        return second(keeps + 1.0)

    return _differentiated(value, 2, 8, 8, 1)


def _convolutions_and_poolings() -> Function:
    kernels = weight(3, 3, 1, 6), weight(3, 3, 6, 4)

    def layer(x: tf.Tensor) -> tf.Tensor:
        for kernel in kernels:
            bias = tf.fill((kernel.shape[-1],), 0.1)
            x = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)
            x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "SAME")
        return x

    return layer


def convolutions_and_poolings() -> UserProgram:
    """Return two convolutions with biases, activations and poolings."""
    return UserProgram(_convolutions_and_poolings(), (normal(2, 8, 8, 1),))


def three_paths() -> UserProgram:
    """Return three networks of convolutions, one for each channel."""
    paths = [_convolutions_and_poolings() for _ in range(3)]

    def value(x: tf.Tensor) -> tf.Tensor:
        parts = zip(paths, tf.split(x, 3, 3), strict=True)
        return tf.concat([path(part) for path, part in parts], 3)

    return _differentiated(value, 2, 8, 8, 3)


def two_paths_and_a_shortcut() -> UserProgram:
    """Return two layers of one input and the sum of all."""
    first, second = weight(8, 8), weight(8, 8)
    return _differentiated(
        lambda x: tf.nn.relu(x @ first) + tf.nn.relu(x @ second) + x, 8, 8
    )


def loop_of_a_layer() -> UserProgram:
    """Return a layer applied four times in a loop of frames."""

    def value(x: tf.Tensor) -> tf.Tensor:
        kernel = weight(8, 8)
        return _repeated(lambda y: tf.nn.relu(y @ kernel), x)

    return _differentiated(value, 8, 8, in_v1_graph=True, iterations=4)


def loop_of_variables_that_change_places() -> UserProgram:
    """Return a loop of frames that swaps its variables in each round."""

    def value(x: tf.Tensor) -> tf.Tensor:
        first, second = weight(8, 8), weight(8, 8)

        def body(i: tf.Tensor, y: tf.Tensor, z: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return i + 1, tf.nn.relu(z @ second), tf.nn.relu(y @ first)

        return tf.while_loop(lambda i, *_: i < 4, body, (0, tf.ones_like(x), x))[1]

    return _differentiated(value, 8, 8, in_v1_graph=True, iterations=4)


def recurrent_cell_and_an_array() -> UserProgram:
    """Return an LSTM cell in a loop of frames that reads an array."""

    def value(state: tf.Tensor) -> tf.Tensor:
        kernel, bias = weight(8, 16), tf.fill((4,), 0.1)
        array = tf.TensorArray(tf.float32, 4)
        for i in range(4):
            array = array.write(i, tf.fill((8, 4), 0.1))

        def body(i: tf.Tensor, c: tf.Tensor, h: tf.Tensor) -> tuple[tf.Tensor, ...]:
            gates = tf.split(tf.concat((array.read(i), h), 1) @ kernel, 4, 1)
            enters, stays, leaves, new = (tf.nn.bias_add(g, bias) for g in gates)
            c = tf.sigmoid(stays) * c + tf.sigmoid(enters) * tf.tanh(new)
            return i + 1, c, tf.sigmoid(leaves) * tf.tanh(c)

        start = (0, state, tf.reverse(state, (0,)))
        return tf.while_loop(lambda i, *_: i < 4, body, start)[2]

    return _differentiated(value, 8, 4, in_v1_graph=True, iterations=4)


def function_that_stays_a_function() -> UserProgram:
    """Return a layer and Swish, which is not inlined and has a gradient of its own."""
    kernel = weight(8, 8)

    @tf.custom_gradient
    def swish(x: tf.Tensor) -> tuple[tf.Tensor, Function]:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            slope = tf.sigmoid(x)
            return dy * (slope * (1.0 + x * (1.0 - slope)))

        return x * tf.sigmoid(x), gradient

    kept = tf.function(swish, experimental_attributes={"_noinline": True})
    return _differentiated(lambda x: kept(tf.nn.relu(x @ kernel)), 8, 8)


def training_within_a_loop() -> UserProgram:
    """Return Adam on reference variables, all steps in one loop of frames."""

    def step(x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        kernel, bias = _reference(32, 100), _reference(100)
        optimizer = tf.compat.v1.train.AdamOptimizer()

        def body(i: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels[i], x[i] @ kernel + bias
                )
            )
            with tf.control_dependencies([optimizer.minimize(loss)]):
                return i + 1, tf.identity(loss)

        return tf.while_loop(lambda i, _: i < 10, body, (0, 0.0))[1]

    inputs = normal(10, 64, 32), ids(10, 64, below=100)
    return UserProgram(step, inputs, iterations=10, in_v1_graph=True)


def nothing_to_gain() -> UserProgram:
    """Return a chain without a product."""
    return UserProgram(
        lambda x: tf.nn.relu(tf.sqrt(tf.nn.relu(tf.exp(x)))), (normal(32),)
    )


def casts_of_its_own() -> UserProgram:
    """Return a product that the program casts itself, to either type."""

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        results = []
        for dtype in (tf.float16, tf.bfloat16):
            low = tf.cast(x, dtype)
            results.append(tf.nn.relu(tf.cast(tf.nn.relu(low @ low), tf.float32)))
        return results

    return UserProgram(step, (_MATRIX,))


def cast_of_conditions() -> UserProgram:
    """Return a product of what was cast from truth values."""

    def step(x: tf.Tensor) -> tf.Tensor:
        numbers = tf.cast(x > 0, tf.float32)
        return numbers @ numbers

    return UserProgram(step, (_MATRIX,))


def chain_of_all_lists() -> UserProgram:
    """Return ops of all four lists in a row, and a product of sparse matrices."""

    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.nn.relu(tf.sqrt(tf.nn.relu(tf.exp(x))))
        y = tf.nn.relu(tf.math.log(tf.nn.relu(y @ y)))
        return tf.nn.relu(tf.raw_ops.SparseMatMul(a=y, b=y))

    return UserProgram(step, (_MATRIX,))


def clear_ops_in_both_directions() -> UserProgram:
    """Return clear ops that are tied by an op of two of them, one with a product."""

    def step(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        first, second = tf.nn.relu(x), tf.nn.relu(-x)
        shapes = tf.raw_ops.ShapeN(input=[first, second])
        return first @ first, tf.nn.relu(second), *shapes

    return UserProgram(step, (_MATRIX,))


def fetches_amid_a_chain() -> UserProgram:
    """Return what a chain has at three places."""

    def step(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        product = x @ x
        clear = tf.nn.relu(tf.exp(tf.sqrt(tf.nn.relu(product))))
        last = tf.nn.relu(clear @ clear)
        return product, clear, last, tf.nn.relu(tf.exp(last / 1e4))

    return UserProgram(step, (_MATRIX,))


def product_on_the_cpu() -> UserProgram:
    """Return two products, of which one is placed by hand."""

    def step(x: tf.Tensor) -> tf.Tensor:
        y = tf.tanh(tf.nn.relu(x) @ tf.nn.relu(x))
        with tf.device("/device:CPU:0"):
            return tf.nn.relu(y @ y)

    return UserProgram(step, (_MATRIX,))


def identity_of_a_reference() -> UserProgram:
    """Return products with a reference variable and with an input, both copied."""

    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return x @ tf.identity(_reference(_SIZE, _SIZE)), x @ tf.identity(y)

    return UserProgram(step, (_MATRIX, _MATRIX), in_v1_graph=True)


def norm_of_a_batch_and_its_gradient() -> UserProgram:
    """Return two convolutions, between them an old norm and its gradient."""
    kernel = weight(3, 3, 16, 16)

    def step(x: tf.Tensor) -> tf.Tensor:
        ones, none = tf.ones(16), tf.zeros(0)
        first = tf.nn.conv2d(x, kernel, 1, "SAME")
        norm = tf.raw_ops.FusedBatchNorm(
            x=first, scale=3 * ones, offset=4 * ones, mean=none, variance=none
        )
        slope = tf.raw_ops.FusedBatchNormGrad(
            y_backprop=norm.y,
            x=first,
            scale=3 * ones,
            reserve_space_1=norm.reserve_space_1,
            reserve_space_2=norm.reserve_space_2,
        )
        return tf.nn.conv2d(norm.y + slope.x_backprop, kernel, 1, "SAME")

    return UserProgram(step, (normal(2, 14, 14, 16),))


def lists_of_types() -> UserProgram:
    """Return an op whose types are a list, and a sum of all that it returns."""

    def step(x: tf.Tensor) -> tf.Tensor:
        total = tf.add_n(tf.raw_ops.IdentityN(input=[x @ x] * 3))
        return total @ total

    return UserProgram(step, (_MATRIX,))


def loop_between_exponential_and_root() -> UserProgram:
    """Return a loop that never runs, whose edges would go round in 16 bits."""

    def step(x: tf.Tensor) -> tf.Tensor:
        def body(y: tf.Tensor) -> tuple[tf.Tensor]:
            root = tf.sqrt(y)
            return (root @ root,)

        return tf.while_loop(lambda _: False, body, (tf.exp(x),))[0]

    return UserProgram(step, (_MATRIX,), in_v1_graph=True)


def products_of_batches() -> UserProgram:
    """Return products of matrices, 64 at once."""
    return UserProgram(
        lambda x: tf.raw_ops.BatchMatMul(x=x, y=x), (normal(64, 32, 32, scale=0.2),)
    )


def list_by_index() -> UserProgram:
    """Return what is set in lists and read from them, one without a product."""

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def reserved() -> tf.Tensor:
            return tf.raw_ops.TensorListReserve(
                element_shape=x.shape, num_elements=8, element_dtype=tf.float32
            )

        first = reserved()
        _set(first, 1, x)
        shorter = tf.raw_ops.TensorListResize(
            input_handle=_set(first, 2, x @ x), size=6
        )
        middle = tf.tanh(_get(shorter, 2, x))
        return (
            _get(_set(first, 3, middle @ middle), 3, x),
            _get(_set(reserved(), 1, x), 1, x),
        )

    return UserProgram(step, (_MATRIX,))


def list_by_its_end() -> UserProgram:
    """Return what is pushed on lists and taken off again, one without a product."""

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        middle = tf.tanh(_pop(_push(_push(_empty(x), x), x @ x), x))
        both = _push(_empty(x), middle @ middle)
        return _pop(both, x), _pop(_push(_empty(x), x), x)

    return UserProgram(step, (_MATRIX,))


def list_of_rows() -> UserProgram:
    """Return a product that becomes a list and is stacked again."""

    def step(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.raw_ops.TensorListFromTensor(tensor=x @ x, element_shape=x.shape[1:])
        middle = tf.tanh(
            tf.raw_ops.TensorListStack(
                input_handle=rows,
                element_shape=x.shape[1:],
                element_dtype=tf.float32,
                num_elements=_SIZE,
            )
        )
        longer = _push(rows, x[0])
        return middle @ middle, _pop(longer, x[0])

    return UserProgram(step, (_MATRIX,))


def lists_of_a_batch() -> UserProgram:
    """Return what is pushed on two lists at once, which then become one."""

    def step(x: tf.Tensor) -> tf.Tensor:
        product = x @ x
        handles = tf.raw_ops.TensorListPushBackBatch(
            input_handles=tf.stack((_empty(x), _empty(x))),
            tensor=tf.stack((product, product)),
        )
        whole = tf.raw_ops.TensorListConcatLists(
            input_a=handles[0], input_b=handles[1], element_dtype=tf.float32
        )
        middle = tf.tanh(_pop(whole, x))
        return middle @ middle

    return UserProgram(step, (_MATRIX,))


def list_through_a_function() -> UserProgram:
    """Return a list that goes through a function, and one that does not."""

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def kept(handle: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        popped = tf.raw_ops.TensorListPopBack(
            input_handle=_push(handle, x),
            element_shape=x.shape,
            element_dtype=tf.float32,
        )
        return popped.output_handle, popped.tensor

    def step(x: tf.Tensor) -> tf.Tensor:
        middle = tf.tanh(x @ x)
        through, _ = kept(_push(_empty(x), middle), middle)
        return _pop(through, x) @ _pop(_push(_empty(x), middle), x)

    return UserProgram(step, (_MATRIX,))


def _between_products(function: Function, low: float, high: float) -> UserProgram:
    def step(x: tf.Tensor) -> tf.Tensor:
        same = tf.eye(_SIZE)
        return function(x @ same) @ same

    return UserProgram(step, (uniform(_SIZE, _SIZE, low=low, high=high),))


def _colored_loop(colors: Sequence[str]) -> UserProgram:
    before, within, behind = colors

    def value(x: tf.Tensor) -> tf.Tensor:
        x = _chained(before, x)
        kernel = weight(8, 8)
        own = {**_BY_COLOR, "a": lambda y: y @ kernel}
        return _chained(behind, _repeated(lambda y: _chained(within, y, own), x))

    return UserProgram(value, (normal(8, 8),), iterations=4, in_v1_graph=True)


def _chained(
    colors: str, x: tf.Tensor, functions: dict[str, Function] = _BY_COLOR
) -> tf.Tensor:
    for color in colors:
        x = functions[color](x)
    return x


def _repeated(body: Function, x: tf.Tensor) -> tf.Tensor:
    """Apply a function four times."""
    return tf.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, body(y)), (0, x))[1]


def _reference(*shape: int) -> tf.Variable:
    initial = np.random.default_rng(shape).normal(size=shape) * shape[0] ** -0.5
    return tf.compat.v1.Variable(initial.astype(np.float32), use_resource=False)


def _empty(like: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.EmptyTensorList(
        element_shape=like.shape, max_num_elements=8, element_dtype=tf.float32
    )


def _push(handle: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorListPushBack(input_handle=handle, tensor=value)


def _pop(handle: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorListPopBack(
        input_handle=handle, element_shape=like.shape, element_dtype=tf.float32
    ).tensor


def _set(handle: tf.Tensor, index: int, value: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorListSetItem(input_handle=handle, index=index, item=value)


def _get(handle: tf.Tensor, index: int, like: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.TensorListGetItem(
        input_handle=handle,
        index=index,
        element_shape=like.shape,
        element_dtype=tf.float32,
    )


def _named(
    name: str, make: Callable[..., UserProgram], *values: Any
) -> Callable[[], UserProgram]:
    def program() -> UserProgram:
        return make(*values)

    program.__name__ = name
    return program


# Those that are made of tables; a module's public functions are programs by themselves.
PROGRAMS = (
    *(
        _named(f"{name}_between_products", _between_products, *what)
        for name, what in _FUNCTIONS.items()
    ),
    *(
        _named(f"loop_of_{'_'.join(colors)}", _colored_loop, colors)
        for colors in _COLORED_LOOPS
    ),
)
