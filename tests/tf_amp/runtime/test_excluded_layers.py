"""Layers given as objects stay float32, and no others of the same name."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_amp
from keras_callbacks import AutoMixedPrecision
from tf_amp.config.setting_values import checked_exclusions
from tf_amp.errors import ConfigError

pytestmark = pytest.mark.usefixtures("disabled_afterwards")

X = np.eye(8, dtype="float32")
both_keras = pytest.mark.parametrize("kit", [keras, tf_keras], ids=["k3", "tf_keras"])


def encoder(kit, name):
    """Return a model of one layer that is called like that of other encoders."""
    inputs = kit.layers.Input([8])
    return kit.Model(inputs, kit.layers.Dense(8, name="head")(inputs), name=name)


def model_of(kit, *layers):
    """Return layers in a row, with one use of the first at the end, compiled."""
    inputs = outputs = kit.layers.Input([8])
    for layer in (*layers, layers[0]):
        outputs = layer(outputs)
    model = kit.Model(inputs, outputs, name="whole")
    model.compile("sgd", "mse", jit_compile=False)
    return model


def products():
    """Return the names of products of the latest plan, by their type."""
    found = {"float32": [], "bfloat16": []}
    for row in tf_amp.plans()[-1].decisions:
        if row.op in ("MatMul", "_FusedMatMul"):
            found[row.dtype].append(row.slot.node)
    return found


@both_keras
def test_of_namesakes_the_given_one_stays_float32_with_its_gradients(kit):
    first, second = encoder(kit, "first"), encoder(kit, "second")
    model = model_of(kit, first, second)
    tf_amp.enable("bfloat16", opt_level="O2", exclude=[second.get_layer("head")])
    model.train_on_batch(X, X)

    found = products()
    # Forward, and the gradients of its kernel and its input.
    assert len(found["float32"]) == 3
    assert all("second" in name and "head" in name for name in found["float32"])
    # Both uses of the other one; the input of the model takes no gradient.
    assert len(found["bfloat16"]) == 5
    assert all("first" in name and "head" in name for name in found["bfloat16"])


@both_keras
def test_each_use_of_a_layer_and_all_layers_of_a_model_stay_float32(kit):
    # TensorFlow calls the second use of `dense` like the layer `dense_1`.
    shared, other = (kit.layers.Dense(8, name=name) for name in ("dense", "dense_1"))
    inner = encoder(kit, "inner")
    model = model_of(kit, shared, other, inner)
    with tf_amp.mixed_precision_scope("bfloat16", opt_level="O2", exclude=shared):
        model.predict(X, verbose=0)
    assert (len(products()["float32"]), len(products()["bfloat16"])) == (2, 2)
    fresh = model_of(kit, shared, other, inner)
    given = ["^no such name$", inner]
    with tf_amp.mixed_precision_scope("bfloat16", opt_level="O2", exclude=given):
        fresh.predict(X, verbose=0)
    assert ["inner" in name for name in products()["float32"]] == [True]
    assert len(products()["bfloat16"]) == 3


@both_keras
def test_the_callback_takes_a_layer_that_is_not_built_yet(kit):
    head = kit.layers.Dense(8)
    model = kit.Sequential([kit.layers.Dense(8), head])
    model.compile("sgd", "mse", jit_compile=False)
    mixed = AutoMixedPrecision("bfloat16", opt_level="O2", exclude=[head], verbose=0)
    model.fit(X, X, callbacks=[mixed], verbose=0)
    assert (len(products()["float32"]), len(products()["bfloat16"])) == (3, 2)


def test_a_scope_without_the_layer_converts_it():
    head = keras.layers.Dense(8)
    model = model_of(keras, head)
    tf_amp.enable("bfloat16", opt_level="O2", exclude=[head])
    assert tf.executing_eagerly()
    tf_amp.enable("bfloat16", opt_level="O2")
    model.predict(X, verbose=0)
    assert not products()["float32"]


def test_a_layer_is_a_pattern_that_is_written_to_the_environment_and_back():
    odd = keras.layers.Dense(8, name="a(b c")
    (pattern,) = checked_exclusions(odd)
    assert checked_exclusions([odd, "x"]) == (pattern, "x")
    assert pattern.split() == [pattern]


@pytest.mark.parametrize("given", [3, [3], [tf.Module()], [keras.layers.Dense]])
def test_what_is_neither_text_nor_a_layer_is_refused(given):
    with pytest.raises(ConfigError, match=r"exclude: received .* Keras layer"):
        tf_amp.enable(exclude=given)
