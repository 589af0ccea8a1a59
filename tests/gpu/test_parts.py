"""Parts of programs: scopes, Sessions, block-sparse layers, stored models."""

from __future__ import annotations

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.gpu.device import ON_THE_DEVICE
from tests.placing import KIND
from tests.tf_amp.block_sparse.test_product import dense_form
from tf_amp.block_sparse import BlockSparseDense

pytestmark = ON_THE_DEVICE

v1 = tf.compat.v1
# float32 keeps both low bits of VALUE, float16 one of them, bfloat16 none.
VALUE = 1 + 2**-9 + 2**-12
DTYPES = {1.0: "bfloat16", 1 + 2**-9: "float16", VALUE: "float32"}


def product_type() -> str:
    """Return the type in which a product that is traced now is computed."""
    x = tf.eye(16) * VALUE
    found = tf.function(lambda x: tf.nn.relu(x @ tf.eye(16)))(x)
    assert found.device.endswith(f"{KIND}:0")
    return DTYPES[float(found[0, 0])]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_scope_holds_for_what_is_traced_inside(dtype: str) -> None:
    assert product_type() == "float32"
    with tf_amp.mixed_precision_scope(dtype=dtype, opt_level="O2"):
        assert product_type() == dtype
        with tf_amp.float32_scope():
            assert product_type() == "float32"
    assert product_type() == "float32"


def test_a_session_trains_by_gradients_of_tensorflow_1() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 32)).astype(np.float32)

    def losses(steps: list[np.ndarray]) -> list[float]:
        with tf.Graph().as_default(), v1.Session() as session:
            given = v1.placeholder(tf.float32, x.shape)
            start = tf.constant(np.eye(32, dtype=np.float32) / 2)
            weight = v1.get_variable("w", initializer=start, use_resource=True)
            loss = tf.reduce_mean((tf.nn.relu(given @ weight) @ weight - 1.0) ** 2)
            (slope,) = tf.gradients(loss, [weight])
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            train = optimizer.apply_gradients([(slope, weight)])
            session.run(v1.global_variables_initializer())
            return [session.run([loss, train], {given: each})[0] for each in steps]

    expected = losses([x] * 20)
    scale = tf_amp.DynamicLossScale(initial=2.0**10)
    tf_amp.enable("float16", opt_level="O2", strict=True, loss_scale=scale)
    found = losses([x] * 20)
    assert found[-1] < 0.9 * found[0]
    np.testing.assert_allclose(found, expected, rtol=0.01)
    assert found != expected
    # What overflows in between leaves the weights as they were.
    with_overflow = losses([*[x] * 10, x * np.float32(np.inf), *[x] * 10])
    assert not np.isfinite(with_overflow[10])
    assert with_overflow[11:] == pytest.approx(found[10:], rel=1e-3)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["graph", "compiled"])
def test_block_sparse_layers_are_dense_ones_with_zeros_and_learn(is_compiled) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(128, 64)).astype(np.float32)
    y = x[:, :8] * x[:, 8:16]

    def layer_and_losses() -> tuple[BlockSparseDense, list[float]]:
        keras.utils.set_random_seed(1)
        layer = BlockSparseDense(256, 16, density=0.5, activation="relu", seed=3)
        model = keras.Sequential([keras.Input((64,)), layer, keras.layers.Dense(8)])
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=is_compiled)
        told = model.fit(x, y, batch_size=32, epochs=5, shuffle=False, verbose=0)
        return layer, told.history["loss"]

    _, expected = layer_and_losses()
    tf_amp.enable("bfloat16", opt_level="O2", strict=True)
    layer, losses = layer_and_losses()
    assert losses[-1] < 0.8 * losses[0] and losses != expected
    assert losses == pytest.approx(expected, rel=0.05)

    matrix = dense_form(tf.convert_to_tensor(layer.kernel), layer.layout)
    dense = tf.nn.relu(x @ matrix + layer.bias).numpy()
    found = tf.function(layer, jit_compile=is_compiled)(x).numpy()
    error = np.linalg.norm(found - dense) / np.linalg.norm(dense)
    assert 0 < error < 2.0**-6


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_stored_model_is_converted_and_serves(dtype, tmp_path: pathlib.Path) -> None:
    keras.utils.set_random_seed(1)
    layers = [
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, "tanh"),
    ]
    model = keras.Sequential([keras.Input((8, 8, 16), name="x"), *layers])
    x = np.random.default_rng(0).normal(size=(32, 8, 8, 16)).astype(np.float32)
    given, target = tmp_path / "given", tmp_path / "target"
    model.export(str(given), verbose=False)
    report = tf_amp.convert(given, target, dtype=dtype, opt_level="O2", verify=True)
    assert report.verifications and report.is_verified

    def served(folder: pathlib.Path) -> tf.Tensor:
        serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
        (result,) = serve(x=tf.constant(x)).values()
        return result

    expected, found = served(given), served(target)
    assert found.device.endswith(f"{KIND}:0")
    error = tf.norm(found - expected) / tf.norm(expected)
    assert 0 < float(error) < 0.02
