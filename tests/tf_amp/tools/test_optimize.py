"""`tf_amp.optimize` on whatever is at hand."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp

SIZE = 64
EPSILON = 2.0**-8
PLANNED = {"device_profile": "cpu-avx512-bf16", "opt_level": "O2", "dtype": "bfloat16"}


def values(*shape):
    return tf.constant(np.random.default_rng(1).normal(size=shape), tf.float32)


@pytest.fixture
def weights():
    return tf.Variable(values(SIZE, SIZE) / SIZE**0.5)


def error(expected, actual):
    return float(tf.norm(expected - actual) / tf.norm(expected))


def test_a_function_with_arguments_gives_a_concrete_function(weights):
    @tf.function
    def fn(x, *, scale):
        return {"y": tf.nn.relu(x @ weights) * scale, "nothing": None}

    x = values(8, SIZE)
    optimized = tf_amp.optimize(fn, x, scale=2.0, **PLANNED)
    result, expected = optimized(x, scale=2.0), fn(x, scale=2.0)
    assert result["nothing"] is None
    assert result["y"].dtype == tf.float32
    assert 0.0 < error(expected["y"], result["y"]) < 4 * EPSILON


def test_a_concrete_function_keeps_its_signature(weights):
    fn = tf.function(lambda x, y: (x @ weights, y)).get_concrete_function(
        tf.TensorSpec((None, SIZE), name="x"), y=tf.TensorSpec((), tf.int64)
    )
    optimized = tf_amp.optimize(fn, **PLANNED)
    assert optimized.structured_input_signature == fn.structured_input_signature
    product, same = optimized(values(8, SIZE), y=tf.constant(3, tf.int64))
    assert int(same) == 3
    assert 0.0 < error(values(8, SIZE) @ weights, product) < 4 * EPSILON


def test_variables_are_shared_and_have_gradients(weights):
    fn = tf.function(lambda x: tf.reduce_sum(x @ weights))
    optimized = tf_amp.optimize(fn, values(8, SIZE), **PLANNED)
    with tf.GradientTape() as tape:
        before = optimized(values(8, SIZE))
    gradient = tape.gradient(before, weights)
    expected = tf.tile(tf.reduce_sum(values(8, SIZE), 0)[:, None], (1, SIZE))
    assert error(expected, gradient) < 4 * EPSILON
    weights.assign(2.0 * weights)
    assert float(optimized(values(8, SIZE))) == pytest.approx(
        2 * float(before), rel=1e-2
    )


def test_updates_happen_once_and_in_float32(weights):
    step = tf.Variable(0)

    @tf.function
    def train(x):
        step.assign_add(1)
        return weights.assign_sub(tf.matmul(x, x) * 2.0**-20)

    before = weights.numpy()
    x = values(SIZE, SIZE)
    tf_amp.optimize(train, x, **PLANNED)(x)
    change = tf.constant(before - weights.numpy())
    assert int(step) == 1
    assert 0.0 < error(tf.matmul(x, x) * 2.0**-20, change) < 0.1


def test_a_keras_model_gives_a_callable_like_it():
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(SIZE), keras.layers.Dropout(0.5)]
    model = keras.Sequential([keras.Input((SIZE,)), *layers])
    optimized = tf_amp.optimize(model, **PLANNED)
    x = values(8, SIZE)
    expected = model(x)
    assert 0.0 < error(expected, optimized(x)) < 4 * EPSILON
    assert 0.0 < error(expected, optimized(x.numpy(), training=False)) < 4 * EPSILON
    assert bool(tf.reduce_any(optimized(x, training=True) == 0.0))


def test_a_graph_is_given_back_with_its_fetches():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, SIZE), name="x")
        tf.identity(tf.nn.relu(x @ values_of(SIZE)), name="y")
    given = graph.as_graph_def()
    untouched = given.SerializeToString(deterministic=True)
    made = tf_amp.optimize(given, ["y"], **PLANNED)
    assert given.SerializeToString(deterministic=True) == untouched
    dtypes = {n.name: n.attr["T"].type for n in made.node if "T" in n.attr}
    assert dtypes["matmul"] == tf.bfloat16.as_datatype_enum
    assert dtypes["y"] == tf.float32.as_datatype_enum
    assert not any(name.startswith("_tf_amp") for n in made.node for name in n.attr)


def values_of(size):
    return np.random.default_rng(1).normal(size=(size, size)).astype("float32")


def test_what_does_not_pay_stays_as_it_is():
    fn = tf.function(lambda x: x @ x)
    x = values(4, 4)
    optimized = tf_amp.optimize(fn, x, device_profile="cpu-avx512-bf16")
    assert np.array_equal(optimized(x), fn(x))


def test_a_graph_without_fetches_is_refused():
    with pytest.raises(ValueError, match="needs fetches"):
        tf_amp.optimize(tf.Graph().as_graph_def())


def test_what_is_no_function_is_refused_with_what_is_allowed():
    with pytest.raises(TypeError, match=r"received 'model'; allowed are .* convert"):
        tf_amp.optimize("model")
