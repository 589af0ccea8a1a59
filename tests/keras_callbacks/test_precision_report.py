"""What PrecisionReport writes, and where, however `fit` ends."""

import json

import keras
import pytest

import tf_amp
from grappler_pass.planning.plan import Plan
from keras_callbacks import GradientHealthMonitor, PrecisionReport, StepTimeMonitor
from keras_callbacks.loss_scale_monitor import ScaleHistory, ScalePoint
from tests.keras_programs import (
    both_keras,
    fit,
    half,
    loss_scale_optimizer,
    overflowing,
    telling_model,
)
from tf_amp.report.counts import counted
from tf_amp.tools.job_page import html_from_record, record_from_path

pytestmark = pytest.mark.usefixtures("disabled_afterwards")


def test_the_report_stands_beside_the_checkpoints_and_is_read_back(tmp_path):
    path = tmp_path / "checkpoints" / "best.keras"
    saving = keras.callbacks.ModelCheckpoint(str(path))
    scale = tf_amp.DynamicLossScale(initial=2.0**10, growth_interval=3)
    callbacks = (PrecisionReport(), saving, half(loss_scale=scale), StepTimeMonitor())
    fit(telling_model(keras), *callbacks)

    told = json.loads((path.parent / "precision_report.json").read_text())
    assert told["outcome"] == "ended" and told["epochs"] == 1
    assert told["scale"]["loss_scale"] == 2048.0
    plan = Plan.from_json(json.dumps(told["plans"][0]["plan"]))
    assert not plan.is_empty and told["plans"][0]["is_applied"]
    assert sum(told["plans"][0]["prices"].values()) > 0
    events = [event["text"] for event in told["events"]]
    assert events[0] == "fit began"
    assert events[1].startswith("planned training step of `fit`: ")
    assert "loss scale 1024 -> 2048 by the end of epoch 1" in events
    text = (path.parent / "precision_report.txt").read_text()
    assert str(plan) in text and "fit ended after 1 epochs" in text
    html = html_from_record(record_from_path(path.parent))
    step_ms = told["step_times"]["step_ms_median"]
    assert f"<b>{step_ms:.3g} ms</b><span>measured step</span>" in html
    names = {each.name for each in path.parent.iterdir()}
    assert {"best.keras", "precision_report.json", "precision_report.txt"} <= names
    assert not [name for name in names if name.startswith(".")]


def test_a_page_shows_each_step_that_was_skipped(tmp_path):
    scale = tf_amp.DynamicLossScale(initial=2.0**24, growth_interval=1000)
    report = PrecisionReport(tmp_path, html=True)
    health = GradientHealthMonitor(every=1)
    fit(telling_model(keras), report, health, half(loss_scale=scale))

    told = json.loads((tmp_path / "precision_report.json").read_text())
    steps, scales, skipped, origins = zip(*told["scales"], strict=True)
    assert list(steps) == list(range(1, len(steps) + 1)) and skipped[-1] > 0
    backed_off = [2.0**24 / 2.0**count for count in skipped]
    assert list(scales) == backed_off
    assert all(
        origins[n] for n in range(len(steps)) if scales[n] != [2.0**24, *scales][n]
    )
    html = (tmp_path / "precision_report.html").read_text()
    assert f"{counted(int(skipped[-1]), 'step')} skipped" in html
    assert told["exponents"] and "exponent of 2" in html
    for layer, counts in health.exponents.items():
        kept = {int(e): n for e, n in told["exponents"][layer].items()}
        assert kept == {e - 127: n for e, n in enumerate(counts) if n}


def test_long_runs_keep_the_points_at_which_something_changed():
    history = ScaleHistory()
    for step in range(1, 10_001):
        if history.wants(step):
            history.add(
                ScalePoint(step, 1024.0 if step < 1111 else 512.0, step // 1111)
            )
    points = history.points
    assert len(points) <= 2001 and points[-1].step > 9_900
    assert [p.step for p in points] == sorted({p.step for p in points})
    (drop,) = [n for n, p in enumerate(points) if p.loss_scale == 512.0][:1]
    assert points[drop].step == 1111


def test_a_report_of_a_fit_that_raised_says_so(tmp_path):
    def fail(*arguments, **logs):
        raise KeyboardInterrupt

    failing = keras.callbacks.LambdaCallback(on_epoch_end=fail)
    with pytest.raises(KeyboardInterrupt):
        fit(telling_model(keras), PrecisionReport(tmp_path), half(), failing)
    told = json.loads((tmp_path / "precision_report.json").read_text())
    assert told["outcome"] == "interrupted" and len(told["plans"]) == 1
    assert told["scale"]["loss_scale"] == tf_amp.loss_scale_state().scale
    assert not [each for each in told["events"] if "loss scale" in each["text"]]


def test_a_report_that_cannot_be_written_leaves_fit_alone(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    for report in (PrecisionReport(tmp_path / "file" / "in"), PrecisionReport()):
        assert len(fit(telling_model(keras), report, half(), epochs=2)["loss"]) == 2
    assert caplog.text.count("PrecisionReport is disabled: NotADirectoryError") == 1
    assert caplog.text.count("PrecisionReport is disabled") == 2
    assert "no folder is given, and no ModelCheckpoint" in caplog.text


@both_keras
def test_steps_that_a_loss_scale_optimizer_skips_are_told_where_it_counts_them(
    kit, tmp_path
):
    model = telling_model(kit, loss_scale_optimizer(kit, 4.0))
    fit(model, PrecisionReport(tmp_path), x=overflowing(), epochs=2)
    text = (tmp_path / "precision_report.txt").read_text()
    events = [line.split("  ")[-1] for line in text.splitlines()]
    told = [event for event in events if "by the end of" in event]
    scales = [
        f"loss scale {scale} by the end of epoch" for scale in ("4 -> 2", "2 -> 1")
    ]
    skipped = ["1 steps skipped by the end of epoch"] * (kit is keras)
    assert told == [
        f"{event} {epoch}"
        for epoch, scale in enumerate(scales, start=1)
        for event in (*skipped, scale)
    ]
    count = "2" if kit is keras else "an unknown number of"
    assert f"loss scale 1, {count} steps skipped" in text
