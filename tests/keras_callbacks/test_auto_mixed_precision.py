"""Mixed precision for one `fit`: what it holds for, and that nothing stays behind."""

import copy
import functools
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_amp
from keras_callbacks import AutoMixedPrecision, StepTimeMonitor
from tests.keras_programs import (
    VALUE,
    X,
    Y,
    both_keras,
    fit,
    half,
    is_float32,
    loss_scale_optimizer,
    mixed,
    regression,
    telling_model,
)
from tf_amp.errors import ConfigError
from tf_amp.runtime import switch


@pytest.fixture(autouse=True)
def _undone():
    before = switch._open_scopes
    yield
    assert switch._open_scopes == before
    tf_amp.disable()


def during_fit(kit, **hooks):
    return kit.callbacks.LambdaCallback(**hooks)


@both_keras
def test_a_fit_is_in_mixed_precision_and_nothing_after_it(kit):
    model = telling_model(kit)
    fit(model)
    before = (model.train_function, model.test_function, model.optimizer)
    history = fit(model, mixed(), validation_data=(X, Y))

    assert not is_float32(history["loss"][0])
    assert not is_float32(history["val_loss"][0])
    assert (model.train_function, model.test_function, model.optimizer) == before
    assert not tf_amp.is_enabled()
    assert all(weight.dtype in ("float32", tf.float32) for weight in model.weights)
    after = fit(model, validation_data=(X, Y))
    assert is_float32(after["loss"][0]) and is_float32(after["val_loss"][0])
    np.testing.assert_array_equal(model.predict(X, verbose=0), X)


@both_keras
def test_validation_and_predictions_during_fit_are_converted_as_asked(kit):
    for validation, predict in ((False, True), (True, False)):
        model, predicted = telling_model(kit), []

        def look(epoch, logs, model=model, predicted=predicted):
            predicted.append(model.predict(X, verbose=0))

        callback = mixed(validation=validation, predict=predict)
        looking = during_fit(kit, on_epoch_end=look)
        history = fit(model, looking, callback, validation_data=(X, Y))
        assert is_float32(history["val_loss"][0]) != validation
        assert (predicted[0] != X).any() == predict


@pytest.mark.parametrize(
    ("kit", "error", "is_disabled"),
    [
        (keras, KeyboardInterrupt, False),
        (tf_keras, ValueError, False),
        (keras, ValueError, True),
    ],
)
def test_a_fit_that_ends_with_an_error_leaves_nothing_behind(kit, error, is_disabled):
    def fail(*arguments, **logs):
        raise error("stop")

    model, callback = telling_model(kit), mixed()
    if is_disabled:
        tf_amp.disable()
    with pytest.raises(error):
        fit(model, callback, during_fit(kit, on_train_batch_end=fail))
    assert switch._open_scopes == 0
    assert is_float32(fit(model)["loss"][0])


def test_one_callback_serves_one_fit_after_another():
    callback, model = mixed(), telling_model(keras)
    callbacks = (callback, callback, copy.deepcopy(callback))
    losses = [fit(model, each)["loss"][0] for each in callbacks]
    assert len(set(losses)) == 1 and not is_float32(losses[0])


def test_a_training_function_made_anew_during_fit_is_converted_too():
    model = telling_model(keras)

    def make_anew(epoch, logs):
        model.make_train_function(force=True)

    anew = during_fit(keras, on_epoch_end=make_anew)
    assert not is_float32(fit(model, anew, mixed(), epochs=2)["loss"][1])


def own_step(kit):
    class OwnStep(kit.Model):
        def train_step(self, data):
            inputs, targets = data
            with tf.GradientTape() as tape:
                outputs = self(inputs, training=True)
                loss = tf.reduce_mean((outputs - targets) ** 2)
            gradients = tape.gradient(loss, self.trainable_variables)
            pairs = zip(gradients, self.trainable_variables, strict=True)
            self.optimizer.apply_gradients(pairs)
            return {"own": loss}

    return OwnStep


KINDS = {
    "accumulation": lambda: regression(
        keras, keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), own_step(keras)
    ),
    "average": lambda: regression(
        keras, keras.optimizers.SGD(0.1, use_ema=True), steps_per_execution=2
    ),
    "xla": lambda: regression(keras, "sgd", jit_compile=True),
    "tf_keras": lambda: regression(
        tf_keras,
        tf_keras.optimizers.SGD(0.1, use_ema=True),
        own_step(tf_keras),
        steps_per_execution=2,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_training_goes_as_within_a_scope(kind):
    scoped, called = KINDS[kind](), KINDS[kind]()
    with tf_amp.mixed_precision_scope(dtype="float16", opt_level="O2"):
        fit(scoped)
    count = len(tf_amp.plans())
    fit(called, half())

    assert len(tf_amp.plans()) > count
    for expected, weights in zip(
        scoped.get_weights(), called.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(weights, expected)


def test_a_model_that_runs_eagerly_trains_and_scales_its_losses():
    for kit in (keras, tf_keras):
        scale = tf_amp.DynamicLossScale(initial=2.0**10)
        fit(telling_model(kit, run_eagerly=True), mixed(loss_scale=scale))
        assert tf_amp.loss_scale_state(scale).good_steps == 4


def test_the_end_of_fit_is_told_in_one_paragraph(capsys):
    loud = {"opt_level": "O2", "dtype": "float16"}
    fit(telling_model(keras), AutoMixedPrecision(**loud), verbose=2)
    told = capsys.readouterr().out.splitlines()[-1]
    assert re.match(r"Mixed precision: Training has \d+ of \d+ operations \(", told)
    assert (
        "in float16. A step is expected to take " in told
        and "The gain was not measured" in told
    )
    assert told.endswith("The loss scale ends at 32768; no steps skipped.")

    fit(
        telling_model(keras),
        StepTimeMonitor(compare=3),
        AutoMixedPrecision(**loud, verbose=1),
        epochs=3,
    )
    told = capsys.readouterr().out
    assert "Measured: " in told and "3 pairs of steps" in told

    fit(telling_model(keras), AutoMixedPrecision(**loud, verbose=0), verbose=2)
    assert "Mixed precision" not in capsys.readouterr().out
    fit(telling_model(keras), AutoMixedPrecision(**loud))
    assert capsys.readouterr().out == ""


@both_keras
def test_it_stands_aside_of_a_mixed_policy(kit, caplog):
    kit.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = telling_model(kit)
        fit(model, mixed())
    finally:
        kit.mixed_precision.set_global_policy("float32")
    assert not tf_amp.plans()
    assert "is disabled: the model has Keras' policy mixed_float16" in caplog.text


@both_keras
def test_its_loss_scaling_stands_aside_of_a_loss_scale_optimizer(kit, caplog):
    model = telling_model(kit, loss_scale_optimizer(kit, 2.0))
    scale = tf_amp.DynamicLossScale(initial=2.0**10)
    history = fit(model, half(loss_scale=scale))
    assert not is_float32(history["loss"][0])
    assert tf_amp.loss_scale_state(scale).good_steps == 0
    assert "leaves the scaling of losses to the model's LossScaleOpt" in caplog.text


def test_it_stands_aside_in_graph_mode(caplog):
    with tf.Graph().as_default():
        model = tf_keras.Sequential([tf_keras.layers.Dense(8, use_bias=False)])
        model.compile("sgd", "mse")
        fit(model, mixed())
    assert "AutoMixedPrecision is disabled: this is graph mode" in caplog.text
    assert "(AMP204)" in caplog.text


def test_two_of_them_in_one_fit_are_refused():
    model = telling_model(keras)
    with pytest.raises(ConfigError, match="received 2 of them"):
        fit(model, mixed(), half())
    once = mixed()
    with pytest.raises(ConfigError, match="received 2 of them"):
        fit(model, once, once)
    assert is_float32(fit(model)["loss"][0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"dtype": "float8"},
            "dtype: received 'float8'; allowed are bfloat16, float16",
        ),
        ({"opt_level": "O9"}, "opt_level: received 'O9'"),
        ({"loss_scale": "often"}, "loss_scale: received 'often'"),
        ({"exclude": ["("]}, "exclude"),
        ({"validation": "yes"}, "validation='yes'; allowed are True, False"),
        ({"predict": 1}, "predict=1; allowed are True, False"),
        ({"verbose": "loud"}, "verbose='loud'; allowed are None, 0, 1, 2"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, words):
    with pytest.raises(ConfigError) as refused:
        AutoMixedPrecision(**arguments)
    assert words in str(refused.value)


@both_keras
def test_one_evaluation_or_prediction_is_in_mixed_precision(kit):
    model = telling_model(kit)
    callback, low = mixed(dtype="bfloat16", validation=False), float(VALUE**2 // 1)
    evaluate = functools.partial(model.evaluate, X, Y, verbose=0)
    predict = functools.partial(model.predict, X, verbose=0)
    for _ in range(2):
        assert not is_float32(evaluate(callbacks=[callback]))
        assert predict(callbacks=[callback])[0, 0] == low
        assert is_float32(evaluate())
        assert predict()[0, 0] == np.float32(VALUE)
    assert not tf_amp.is_enabled()


def test_evaluations_with_one_callback_are_traced_once():
    traces = []

    class Traced(keras.Model):
        def test_step(self, data):
            traces.append(data)
            return super().test_step(data)

    inputs = keras.Input([8])
    model = Traced(inputs, keras.layers.Dense(8)(inputs))
    model.compile("sgd", "mse", jit_compile=False)
    callback = mixed()
    for _ in range(3):
        model.evaluate(X, Y, verbose=0, callbacks=[callback])
    assert len(traces) == 1
    model.compile("sgd", "mae", jit_compile=False)
    model.evaluate(X, Y, verbose=0, callbacks=[callback])
    assert len(traces) == 2


def test_an_evaluation_that_raises_leaves_the_model_as_it_was():
    def fail(batch, logs):
        raise KeyboardInterrupt

    model = telling_model(keras)
    raising = keras.callbacks.LambdaCallback()
    raising.on_test_batch_end = fail
    with pytest.raises(KeyboardInterrupt):
        model.evaluate(X, Y, verbose=0, callbacks=[mixed(), raising])
    assert is_float32(model.evaluate(X, Y, verbose=0))


def test_a_step_that_only_shares_scalars_is_told_to_stay_float32(capsys):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(4)])
    model.compile("adam", "mse")
    callback = AutoMixedPrecision()
    model.fit(np.ones([8, 4]), np.ones([8, 4]), callbacks=[callback], verbose=2)
    assert (
        "Mixed precision: Training stays float32: no conversion was predicted to pay."
    ) in capsys.readouterr().out
