"""The monitors: what they write, wherever they stand, and that they never break fit."""

import csv
import math
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from tensorflow.core.framework.graph_pb2 import GraphDef

import tf_amp
from grappler_pass.pipeline import Rewrite
from grappler_pass.planning.plan import Plan
from keras_callbacks import (
    GradientHealthMonitor,
    LossScaleMonitor,
    PrecisionReport,
    StepTimeMonitor,
    summaries,
)
from keras_callbacks.loss_scale_monitor import ScaleReadings
from keras_callbacks.step_time_monitor import Comparison
from keras_callbacks.summaries import PlanWatch
from tests.keras_programs import (
    X,
    Y,
    both_keras,
    fit,
    half,
    loss_scale_optimizer,
    overflowing,
    telling_model,
)
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError
from tf_amp.rewriting import arriving_graphs, host
from tf_amp.training.scale_state import ScaleState

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


@both_keras
def test_where_nothing_is_scaled_the_scale_is_one_and_steps_are_counted(kit, capsys):
    history = fit(telling_model(kit), LossScaleMonitor(), epochs=2, verbose=1)
    assert history["loss_scale"] == [1.0, 1.0]
    assert history["skipped_steps"] == [0, 0]
    assert history["good_steps"] == [4, 8]
    shown = capsys.readouterr().out
    assert "loss_scale: 1.0" in shown and "good_steps: 8.0" in shown


@both_keras
def test_steps_are_counted_as_they_were_taken_where_one_call_takes_several(kit):
    model = telling_model(kit, steps_per_execution=3)
    assert fit(model, LossScaleMonitor(), epochs=2)["good_steps"] == [4, 8]


@both_keras
def test_an_overflow_is_seen_by_every_callback_in_any_order(kit, tmp_path):
    seen, own_history = [], kit.callbacks.History()

    def look(epoch, logs):
        seen.append((logs["loss_scale"], logs["skipped_steps"], logs["good_steps"]))

    before = (
        own_history,
        kit.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        kit.callbacks.LambdaCallback(on_epoch_end=look),
    )
    scale = tf_amp.DynamicLossScale(initial=2.0**10)
    callbacks = (*before, half(loss_scale=scale), LossScaleMonitor())
    fit(telling_model(kit), *callbacks, x=overflowing())

    assert seen == [(512.0, 1, 2)]
    assert own_history.history["skipped_steps"] == [1]
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert float(rows[0]["loss_scale"]) == 512.0


def test_steps_are_not_waited_for_where_nothing_shows_them(monkeypatch):
    evaluate, reads = ScaleState.evaluate, []

    def counting(state, *arguments):
        reads.append(state)
        return evaluate(state, *arguments)

    monkeypatch.setattr(ScaleState, "evaluate", counting)
    counts = []
    for batch_size in (16, 4):
        reads.clear()
        scale = tf_amp.DynamicLossScale()
        callbacks = (LossScaleMonitor(every=1), half(loss_scale=scale))
        fit(telling_model(keras), *callbacks, batch_size=batch_size)
        counts.append(sum(state.loss_scale is scale for state in reads))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize(("kit", "last"), [(keras, 1), (tf_keras, 3)])
def test_steps_are_timed_and_examples_counted(kit, last):
    def stop(batch, logs):
        model.stop_training = batch == last

    model = telling_model(kit)
    stopping = kit.callbacks.LambdaCallback(on_train_batch_end=stop)
    history = fit(model, StepTimeMonitor(), stopping, validation_data=(X, Y))
    median, rate = history["step_ms_median"][0], history["examples_per_second"][0]
    assert 0 < median <= history["step_ms_p95"][0]
    assert math.isclose(rate, 8 / (median / 1e3))


def test_a_speed_up_is_that_of_neighboring_steps_though_the_machine_gets_slower():
    seconds = [(1, 1.25), (2, 2.5), (3, 2), (4, 5), (5, 6)]
    pairs = tuple((before / 1e3, after / 1e3) for before, after in seconds)
    assert str(Comparison(pairs)) == (
        "3 -> 2.5 ms per step (0.80x in the median of 5 pairs of steps, half of them "
        "0.80x to 0.83x)"
    )


def test_float32_is_compared_by_turns_only_beside_mixed_precision(caplog):
    timer = StepTimeMonitor(compare=3)
    fit(telling_model(keras), timer, half(), epochs=3)
    assert len(timer.comparison.pairs) == 3
    assert timer.comparison.ratio > 0
    fit(telling_model(keras), timer)
    assert timer.comparison is None
    assert "this fit is in float32 anyway" in caplog.text


@both_keras
def test_gradients_that_leave_the_range_are_counted_by_layer(kit):
    def loss(targets, outputs):
        return tf.reduce_sum(targets * outputs, axis=-1)

    inputs = kit.layers.Input([2])
    dense = kit.layers.Dense(2, use_bias=False, name="lossy")
    model = kit.Model(inputs, dense(inputs))
    model.compile(kit.optimizers.SGD(0.0), loss, jit_compile=False)
    # The gradient of the kernel is [[2^20, 2^-30], [1, 0]].
    data = np.array([[1, 0], [0, 1]] * 4, "float32")
    targets = np.array([[2.0**21, 2.0**-29], [2, 0]] * 4, "float32")
    monitor = GradientHealthMonitor(every=1, dtype="float16")
    options = {"batch_size": 2, "shuffle": False, "verbose": 0}
    history = model.fit(data, targets, callbacks=[monitor], **options).history

    assert history["gradient_max"] == [2.0**20]
    assert history["gradient_underflow"] == pytest.approx([1 / 3])
    assert history["gradient_overflow"] == [1 / 4]
    assert [name.rpartition("/")[2] for name in monitor.health] == ["lossy"]


def test_the_loss_scale_lifts_gradients_out_of_the_underflow():
    # The gradient is 2^-25 and less; 2^10 times that is within float16.
    scaled = half(loss_scale=tf_amp.DynamicLossScale(initial=2.0**10))
    for kit, own, callbacks, share in (
        (keras, None, [half(loss_scale="none")], 1.0),
        (keras, None, [scaled], 0.0),
        (keras, loss_scale_optimizer(keras, 2.0**10), [], 0.0),
        (tf_keras, loss_scale_optimizer(tf_keras, 2.0**10), [], 0.0),
    ):
        model = telling_model(kit, own, loss_weights=[2.0**-24])
        looking = GradientHealthMonitor(every=2, dtype="float16")
        assert fit(model, looking, *callbacks)["gradient_underflow"] == [share]


@pytest.mark.parametrize(("kit", "value"), [(keras, np.inf), (tf_keras, np.nan)])
def test_gradients_of_a_step_that_is_skipped_are_counted_as_computed(kit, value):
    scaling = half(loss_scale=tf_amp.DynamicLossScale())
    callbacks = (scaling, GradientHealthMonitor(every=1))
    history = fit(telling_model(kit), *callbacks, x=overflowing(value))
    assert not math.isfinite(history["gradient_max"][0])
    # One of the three steps that are looked at.
    assert history["gradient_overflow"] == pytest.approx([1 / 3])


def test_gradients_are_looked_at_with_the_scale_of_the_strategy_they_are_taken_in():
    growing = {"initial": 1.0, "growth_interval": 16, "growth_factor": 2.0**10}
    scale = tf_amp.DynamicLossScale(**growing)
    scaling = half(loss_scale=scale, opt_level="O0")
    model = telling_model(keras, loss_weights=[2.0**-24])
    fit(model, scaling)
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        other = telling_model(keras)
    fit(other, scaling, batch_size=2)
    assert tf_amp.loss_scale_state(scale).scale == 2.0**10
    history = fit(model, GradientHealthMonitor(every=2, dtype="float16"), scaling)
    assert history["gradient_underflow"] == [1.0]


def test_gradients_given_without_variables_are_of_those_the_optimizer_knows():
    class Halved(keras.Model):
        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self(data[0]))
            gradients = tape.gradient(loss, self.layers[-1].trainable_variables)
            self.last_optimizer.apply(gradients)
            return {"loss": loss}

    inputs = keras.Input([8])
    first, last = (keras.layers.Dense(8, name=name) for name in ("first", "last"))
    model = Halved(inputs, last(first(inputs)))
    model.last_optimizer = keras.optimizers.SGD(0.0)
    model.last_optimizer.build(last.trainable_variables)
    model.compile("sgd", "mse", jit_compile=False)
    monitor = GradientHealthMonitor(every=1)
    fit(model, monitor)
    assert list(monitor.health) == ["last"]


def test_a_step_whose_gradients_pass_no_optimizer_is_reported_once(caplog):
    class Aloof(keras.Model):
        def train_step(self, data):
            return {"loss": tf.reduce_sum(self(data[0]))}

    inputs = keras.Input([8])
    model = Aloof(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", jit_compile=False)
    history = fit(model, GradientHealthMonitor(every=1), epochs=2)
    assert len(history["loss"]) == 2 and "gradient_max" not in history
    assert caplog.text.count("GradientHealthMonitor is disabled") == 1


@both_keras
def test_numbers_go_to_a_folder_beside_those_of_tensorboard(kit, tmp_path):
    board = kit.callbacks.TensorBoard(str(tmp_path), write_graph=False)
    monitors = (LossScaleMonitor(), StepTimeMonitor(), GradientHealthMonitor(every=1))
    fit(telling_model(kit), *monitors, half(), board)
    written = written_to_tensorboard(tmp_path)
    assert {"loss_scale", "skipped_steps", "good_steps", "step_ms_median"} < {*written}
    assert any(tag.startswith("gradient_underflow/") for tag in written)
    ((epoch, plan),) = written["plan/train/training step of `fit`"]
    text = plan.tensor.string_val[0]
    assert epoch == 0 and b"of the time is in float16" in text
    rows = cells_of(text)
    assert rows[0][:3] == ["operation", "op", "type"] and 3 <= len(rows) <= 22
    assert {len(row) for row in rows} == {len(rows[0])}
    tables = [value.tensor.string_val[0] for _, value in written["gradients"]]
    layers = [row[0].replace("\\_", "_") for row in cells_of(tables[-1])[2:]]
    assert sorted(layers) == sorted(monitors[-1].health)
    ((_, result),) = written["result"]
    text = result.tensor.string_val[0]
    assert text.startswith(b"Mixed precision: Training has ")
    assert cells_of(text)[0][-1] == "in float16"


def cells_of(markdown):
    """Return the cells of the table in a text, row by row, its titles first."""
    lines = [x for x in markdown.decode().splitlines() if x.startswith("|")]
    return [re.split(r" (?<!\\)\| ", line[2:-2]) for line in lines]


def written_to_tensorboard(folder):
    """Return by tag the steps and values in the one file of the monitors."""
    (path,) = (folder / "precision").iterdir()
    written = {}
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            written.setdefault(value.tag, []).append((event.step, value))
    return written


@pytest.mark.parametrize(
    ("kit", "scaled_by"),
    [(keras, "optimizer"), (tf_keras, "optimizer"), (tf_keras, "package")],
)
def test_tensorboard_has_the_scale_and_the_time_of_every_step(
    kit, tmp_path, scaled_by, monkeypatch
):
    monkeypatch.setattr(summaries, "STEPS_AT_ONCE", 3)
    own = loss_scale_optimizer(kit, 4.0) if scaled_by == "optimizer" else None
    scaling = half(loss_scale=tf_amp.DynamicLossScale(initial=4.0))
    board = kit.callbacks.TensorBoard(str(tmp_path), write_graph=False)
    callbacks = [LossScaleMonitor(), StepTimeMonitor(), board, *[scaling] * (not own)]
    fit(telling_model(kit, own), *callbacks, x=overflowing(), epochs=2)
    written = written_to_tensorboard(tmp_path)
    scales = [(at, each.simple_value) for at, each in written["step/loss_scale"]]
    halved = [4.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    assert scales == list(enumerate(halved, 1))
    skipped = [each.simple_value for _, each in written["step/skipped_steps"]]
    unknown = own is not None and kit is not keras
    assert (
        all(map(math.isnan, skipped)) if unknown else skipped == [0, *[1] * 4, 2, 2, 2]
    )
    good = [each.simple_value for _, each in written["step/good_steps"]]
    assert good == [1, 0, 1, 2, 3, 0, 1, 2]
    timed = [at for at, each in written["step/step_ms"] if each.simple_value > 0]
    assert timed == [1, 2, 3, 5, 6, 7]


@both_keras
def test_tensorboard_has_the_exponents_of_gradients_by_layer(kit, tmp_path):
    model = telling_model(kit)
    model.layers[-1].kernel.assign(np.diag(2.0 ** np.arange(8)))
    board = kit.callbacks.TensorBoard(str(tmp_path), write_graph=False)
    looking = GradientHealthMonitor(every=1)
    model.fit(np.eye(8), Y[:8], callbacks=[looking, board], verbose=0, epochs=2)

    written = written_to_tensorboard(tmp_path)
    (tag,) = (tag for tag in written if tag.startswith("gradient_exponents/"))
    # The gradient of a diagonal element d is 2 d / 64. The first call is not looked at.
    ((epoch, value),) = written[tag]
    rows = tf.make_ndarray(value.tensor)
    assert epoch == 1
    assert rows.tolist() == [[e, e + 1, 1] for e in range(-5, 3)]


def test_without_tensorboard_no_step_is_read(monkeypatch):
    reads = []
    monkeypatch.setattr(ScaleReadings, "unread", lambda *given: reads.append(given))
    fit(telling_model(keras), LossScaleMonitor(), half(), StepTimeMonitor())
    assert not reads


def test_a_monitor_given_twice_counts_once(caplog):
    first, second = LossScaleMonitor(), LossScaleMonitor()
    history = fit(telling_model(keras), first, second, StepTimeMonitor())
    assert history["good_steps"] == [4]
    assert "another one comes before it" in caplog.text
    timer = StepTimeMonitor()
    assert len(fit(telling_model(keras), timer, timer)["step_ms_median"]) == 1
    assert "StepTimeMonitor is given twice; it counts once." in caplog.text
    assert len(timer.latest.seconds) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LossScaleMonitor(0), "every=0; allowed are ints from 1 to 2"),
        (lambda: LossScaleMonitor(True), "every=True"),
        (lambda: StepTimeMonitor(-1), "compare=-1; allowed are ints from 0 to 2"),
        (lambda: StepTimeMonitor(batch_size=0.5), "batch_size=0.5"),
        (lambda: GradientHealthMonitor("often"), "every='often'"),
        (lambda: GradientHealthMonitor(dtype="int8"), "None, 'bfloat16', 'float16'"),
        (lambda: PrecisionReport(3), "folder=3; allowed are paths and None"),
    ],
)
def test_wrong_arguments_are_refused(make, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        make()


def test_counts_may_be_numbers_of_numpy():
    model = telling_model(keras)
    monitors = (LossScaleMonitor(np.int64(2)), GradientHealthMonitor(np.int8(2)))
    timer = StepTimeMonitor(np.uint8(0), batch_size=np.int32(8))
    history = fit(model, *monitors, timer)
    assert {"loss_scale", "gradient_max", "examples_per_second"} <= history.keys()


# The plans that callbacks collect during one run of `fit`.


def test_of_thousands_of_retraces_the_longest_and_the_latest_plans_are_kept() -> None:
    watch = PlanWatch()
    watch.role = "train"
    watch.start()
    for number in range(2000):
        seconds = 1.0 if number == 7 else 1e-3
        plan = Plan((), "bfloat16", graph=f"step_{number}", seconds_before=seconds)
        rewrite = Rewrite(GraphDef(), plan, changed=True)
        arriving_graphs._record(rewrite, 0.0, AmpConfig())
    watch.stop()
    kept = [watched.plan.graph for watched in watch.plans if watched.role == "train"]
    assert kept == ["step_7", *(f"step_{n}" for n in range(1745, 2000))]


def test_a_run_is_watched_to_its_end_though_mixed_precision_is_disabled() -> None:
    watch = PlanWatch()
    watch.start()
    for name in ("before", "after", "later"):
        plan = Plan((), "bfloat16", graph=name)
        rewrite = Rewrite(GraphDef(), plan, changed=True)
        arriving_graphs._record(rewrite, 0.0, AmpConfig())
        host.forget()
        if name == "after":
            watch.stop()
    assert [watched.plan.graph for watched in watch.plans] == ["before", "after"]
