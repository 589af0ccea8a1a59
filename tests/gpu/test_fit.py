"""Callbacks in `fit`, compiled as Keras chooses, and a job that is killed."""

from __future__ import annotations

import json
import math
import pathlib
import signal

import keras
import numpy as np
import pytest

import tf_amp
from keras_callbacks import (
    GradientHealthMonitor,
    LossScaleMonitor,
    PrecisionReport,
    StepTimeMonitor,
)
from tests.gpu.device import ON_THE_DEVICE, lines_of, run_on_the_device
from tests.keras_programs import X, Y, fit, half, is_float32, mixed, telling_model

pytestmark = ON_THE_DEVICE


def model_of_fit() -> keras.Model:
    """Return a model that Keras compiles where there is a GPU."""
    return telling_model(keras, jit_compile="auto")


def test_one_fit_is_in_16_bits_and_the_next_is_not() -> None:
    model = model_of_fit()
    (in_16_bits,) = fit(model, mixed())["loss"]
    (after,) = fit(model)["loss"]
    assert not is_float32(in_16_bits)
    assert is_float32(after)


def test_the_monitor_of_the_loss_scale_sees_an_overflow() -> None:
    inputs = X.copy()
    inputs[8:16] = np.inf
    scale = tf_amp.DynamicLossScale(initial=2.0**10)
    callbacks = [half(loss_scale=scale), LossScaleMonitor()]
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    history = model_of_fit().fit(inputs, Y, callbacks=callbacks, **options).history
    told = [history[name] for name in ("loss_scale", "skipped_steps", "good_steps")]
    assert told == [[512.0], [1], [2]]


def test_steps_are_timed_and_compared_with_float32() -> None:
    timer = StepTimeMonitor(compare=3)
    history = fit(model_of_fit(), timer, half(), epochs=3)
    median, rate = history["step_ms_median"][0], history["examples_per_second"][0]
    assert math.isclose(rate, 8 / (median / 1e3))
    assert len(timer.comparison.pairs) == 3


def test_gradients_of_no_size_in_float16_are_counted() -> None:
    # The largest is 2^-25 or less.
    model = telling_model(keras, jit_compile="auto", loss_weights=[2.0**-24])
    health = GradientHealthMonitor(every=2)
    history = fit(model, health, half(loss_scale="none"))
    assert history["gradient_underflow"] == [1.0]
    assert 0 < history["gradient_max"][0] < 2.0**-24


def test_the_report_has_the_plan_and_the_last_loss_scale(tmp_path) -> None:
    scale = tf_amp.DynamicLossScale(initial=2.0**10, growth_interval=3)
    fit(model_of_fit(), PrecisionReport(tmp_path), half(loss_scale=scale))
    told = json.loads((tmp_path / "precision_report.json").read_text())
    assert told["outcome"] == "ended"
    assert told["scale"]["loss_scale"] == 2048.0
    assert told["plans"] and told["plans"][0]["is_applied"]


# The scale doubles after every three steps, of which each epoch has four; in the third
# epoch the first job is killed.
RESUMED = """
import keras
import pathlib
import signal
import sys
import tf_amp

FILE = pathlib.Path(os.environ["FOLDER"], "model.keras")
X = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
Y = X[:, :1] - 1
tf_amp.enable("float16", opt_level="O2",
              loss_scale="dynamic:initial=1024,growth_interval=3")
if FILE.exists():
    model, done = keras.models.load_model(FILE), 2
else:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(32, "relu"), keras.layers.Dense(1)]
    model, done = keras.Sequential([keras.Input((16,)), *layers]), 0
    model.compile(keras.optimizers.Adam(0.01), "mse")

class Killing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if int(model.optimizer.iterations) == 10 and "KILLED" in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)

callbacks = [keras.callbacks.ModelCheckpoint(FILE), Killing()]
options = {"batch_size": 8, "shuffle": False, "verbose": 0, "callbacks": callbacks}
told = model.fit(X, Y, epochs=4, initial_epoch=done, **options)
state = tf_amp.loss_scale_state()
print(int(state.scale), state.good_steps, int(model.optimizer.iterations))
print(told.history["loss"][-1])
"""


def test_a_job_that_was_killed_goes_on_where_it_was(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("h5py", reason="Keras writes no model without h5py")
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for folder in (unbroken, broken):
        folder.mkdir()
    killed = run_on_the_device(RESUMED, FOLDER=str(broken), KILLED="1")
    assert killed.code == -signal.SIGKILL, killed.err
    *state, loss = lines_of(RESUMED, FOLDER=str(broken))
    *expected_state, expected = lines_of(RESUMED, FOLDER=str(unbroken))
    assert state == expected_state == ["32768 1 16"]
    assert float(loss) == pytest.approx(float(expected), rel=0.01)
