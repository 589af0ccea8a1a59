"""The layer of Keras trains, is saved, and runs on replicas."""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.tf_amp.block_sparse.test_product import dense_form
from tests.two_cpus import run_on_two
from tf_amp import ConfigError
from tf_amp.block_sparse import BlockSparseDense, butterfly_layout

X = np.random.default_rng(0).normal(size=(32, 16)).astype("float32")
Y = np.random.default_rng(1).normal(size=(32, 8)).astype("float32")


def model_of(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    options = {"density": 0.5, **options}
    hidden = BlockSparseDense(24, 4, activation="relu", **options)
    model = keras.Sequential([keras.Input((16,)), hidden, keras.layers.Dense(8)])
    model.compile("adam", "mse", jit_compile=False)
    return model


def test_a_layer_is_a_dense_one_with_zeros() -> None:
    layer = BlockSparseDense(24, 4, density=0.5, activation="relu", seed=3)
    found = layer(X)
    layer.bias.assign(np.arange(24.0))
    dense = keras.layers.Dense(24, activation="relu")
    dense.build((None, 16))
    matrix = dense_form(tf.convert_to_tensor(layer.kernel), layer.layout)
    dense.set_weights([matrix, np.arange(24.0)])

    assert found.shape == layer.compute_output_shape(X.shape) == (32, 24)
    assert layer.count_params() == 24 + 16 * 24 // 2
    np.testing.assert_allclose(layer(X), dense(X), atol=1e-5)


def test_a_layer_begins_with_the_variance_of_the_inputs_it_reads() -> None:
    layer = BlockSparseDense(256, 16, density=0.25)
    layer.build((None, 256))
    # Glorot: two over the sum of both fans, here a quarter of 256 each.
    expected = (2 / (64 + 64)) ** 0.5
    assert np.std(layer.kernel.numpy()) == pytest.approx(expected, rel=0.03)


def test_layers_of_a_density_differ_and_follow_the_seed_of_keras() -> None:
    def layouts() -> list[Any]:
        keras.utils.set_random_seed(5)
        layers = [BlockSparseDense(24, 4, density=0.5) for _ in range(2)]
        for layer in layers:
            layer.build((None, 16))
        return [layer.layout for layer in layers]

    first, second = layouts()
    assert first != second and layouts() == [first, second]


def test_a_saved_model_learns_and_comes_back(tmp_path: pathlib.Path) -> None:
    model = model_of()
    before, *_, after = model.fit(X, Y, epochs=5, verbose=0).history["loss"]
    assert after < before
    expected = model.predict(X, verbose=0)

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].layout == model.layers[0].layout
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), expected)
    loaded.fit(X, Y, verbose=0)

    tf.saved_model.save(model, str(tmp_path / "saved"))
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    (result,) = served(tf.constant(X)).values()
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_a_saved_function_has_its_gradients(tmp_path: pathlib.Path) -> None:
    layer = BlockSparseDense(24, 4, density=0.5)
    layer.build((None, 16))
    module = tf.Module()
    module.layer = layer
    module.call = tf.function(layer.call, input_signature=[tf.TensorSpec((None, 16))])
    tf.saved_model.save(module, str(tmp_path))

    def slopes(call: Any) -> tf.Tensor:
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(call(x) ** 2)
        return tape.gradient(loss, x)

    loaded = tf.saved_model.load(str(tmp_path))
    np.testing.assert_allclose(slopes(loaded.call), slopes(layer), rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"use_bias": False, "seed": 7}])
def test_a_configuration_makes_the_same_layer_before_and_after_it_is_built(
    options: dict[str, Any],
) -> None:
    layer = BlockSparseDense(
        24, 4, density=0.5, kernel_regularizer="l2", activation="gelu", **options
    )
    copied = BlockSparseDense.from_config(layer.get_config())
    for each in (layer, copied):
        each.build((None, 16))
    again = BlockSparseDense.from_config(layer.get_config())
    again.build((None, 16))

    assert layer.layout == copied.layout == again.layout
    assert again.get_config() == layer.get_config()
    assert again.use_bias == layer.use_bias and again.kernel_regularizer is not None


def test_the_policy_of_keras_gives_its_type() -> None:
    layer = BlockSparseDense(24, 4, density=0.5, dtype="mixed_bfloat16")
    assert layer(X).dtype == tf.bfloat16 and layer.kernel.dtype == "float32"


def test_what_does_not_fit_is_an_error_that_names_row_or_column() -> None:
    layout = butterfly_layout((4, 4))
    with pytest.raises(ConfigError, match="give one of them"):
        BlockSparseDense(16, 4)
    with pytest.raises(ConfigError, match="give one of them"):
        BlockSparseDense(16, 4, layout, density=0.5)
    with pytest.raises(ConfigError, match="column 4 of blocks would have 2 of them"):
        BlockSparseDense(18, 4, density=0.5)
    with pytest.raises(ConfigError, match="column 3 does not fit"):
        BlockSparseDense(12, 4, layout)
    with pytest.raises(ConfigError, match="row 3 of blocks would have 2 of them"):
        BlockSparseDense(16, 4, layout).build((None, 14))
    with pytest.raises(ConfigError, match="row 3 of blocks would have 2 of them"):
        BlockSparseDense(16, 4, density=0.5).build((None, 14))
    with pytest.raises(ConfigError, match="positive integers"):
        BlockSparseDense(16, 0, density=0.5)


def test_two_replicas_learn_as_one_device_does() -> None:
    run_on_two(
        """
        from tf_amp.block_sparse import BlockSparseDense
        draws = np.random.default_rng(0)
        x, y = (draws.normal(size=(64, n)).astype("float32") for n in (16, 3))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)

        def trained():
            keras.utils.set_random_seed(3)
            hidden = BlockSparseDense(16, 4, density=0.5, activation="relu")
            model = keras.Sequential([hidden, keras.layers.Dense(3)])
            model.build((None, 16))
            model.compile("adam", "mse", jit_compile=False)
            model.fit(data, epochs=3, verbose=0)
            return model.get_weights()

        alone = trained()
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            shared = trained()
        assert max(np.abs(a - b).max() for a, b in zip(alone, shared)) < 1e-4
        """
    )
