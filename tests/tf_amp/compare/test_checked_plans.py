"""Plans use no kernel that is wrong: by the table, or by a check before the first step.

The program's kernel is wrong on every CPU: a gradient with explicit padding, which
TensorFlow adds up in 16 bits.
"""

from __future__ import annotations

import pathlib

import pytest

from tests.forking import run_forked

PROGRAM = """
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass.eligibility import known_wrong
from tf_amp.compare import known_kernels as known

def call(x, dy):
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=[1, 1, 2, 2], out_backprop=dy, strides=[1, 1, 1, 1],
        padding="EXPLICIT", explicit_paddings=[0] * 8)

ran = []
fault_in = known.fault_in
known.fault_in = lambda kernel: ran.append(kernel.op) or fault_in(kernel)
ones = tf.ones((14, 21, 21, 2))

def error():
    right = 14 * 21 * 21
    return float(np.abs(tf.function(call)(ones, ones).numpy() - right).max() / right)
"""
EMPTIED = "known_wrong.ROWS = ()\nknown_wrong.rows_for.__defaults__ = ((),)\n"
ENABLED = "tf_amp.enable('bfloat16', opt_level='O2', strict=True{})\n"
SHOWN = "print(error() > 0.1, len(ran), [p.unchecked for p in tf_amp.plans()])\n"


def run(code: str, cache: pathlib.Path, **env: str):
    return run_forked(PROGRAM + code, env={"TF_AMP_CACHE": str(cache), **env})


def test_the_table_keeps_a_kernel_in_float32(tmp_path: pathlib.Path) -> None:
    done = run(ENABLED.format("") + SHOWN, tmp_path)
    assert done.lines() == ["False 0 []"]
    assert done.err.count("AMP106") == 1
    assert "Conv2DBackpropFilter (F, EXPLICIT padding" in done.err


def test_without_the_table_the_check_finds_it_once_for_all_processes(
    tmp_path: pathlib.Path,
) -> None:
    code = EMPTIED + ENABLED.format("") + SHOWN
    first, second = run(code, tmp_path), run(code, tmp_path)
    assert first.lines() == ["False 1 []"]
    assert second.lines() == ["False 0 []"]
    for done in (first, second):
        assert "2 of 4 off" in done.err and "(AMP106)" in done.err


LATE = """
from tf_amp.compare import known_kernels
known_kernels._LIMIT_SECONDS["CPU"] = -1.0
"""
DETERMINED = "tf.config.experimental.enable_op_determinism()\n"
ON, OFF = {"TF_AMP_TUNE": "on"}, {"TF_AMP_TUNE": "off"}
UNCHECKED = "True 0 ['1 kernel not checked (TF_AMP_CHECK=off)']"


@pytest.mark.parametrize(
    ("before", "options", "env", "line"),
    [
        pytest.param("", ", check=False", {}, UNCHECKED, id="check=False"),
        pytest.param("", "", {"TF_AMP_CHECK": "off"}, UNCHECKED, id="TF_AMP_CHECK"),
        pytest.param(LATE, "", ON, "True 0 ['1 kernel not checked']", id="no time"),
        # No clock decides where plans are to be the same.
        pytest.param(LATE, "", OFF, "False 1 []", id="tuning off"),
        pytest.param(LATE + DETERMINED, "", ON, "False 1 []", id="determinism"),
        pytest.param(
            "", ", device_profile='cpu-avx512-bf16'", {}, "True 0 ['']", id="elsewhere"
        ),
    ],
)
def test_without_the_table_a_kernel_is_run_where_it_may_be_and_the_plan_says_so(
    before: str, options: str, env: dict[str, str], line: str, tmp_path: pathlib.Path
) -> None:
    done = run(EMPTIED + before + ENABLED.format(options) + SHOWN, tmp_path, **env)
    assert done.lines() == [line]
    if before == LATE and env is ON:
        # The next process has the time.
        done = run(EMPTIED + ENABLED.format("") + SHOWN, tmp_path, **env)
        assert done.lines() == ["False 1 []"]


def test_explaining_runs_nothing_and_goes_by_what_is_known(
    tmp_path: pathlib.Path,
) -> None:
    explained = """
plan = tf_amp.explain(tf.function(call), ones, ones)
print(len(ran), plan.unchecked, [d.reason.cause.name for d in plan.decisions
      if d.op == "Conv2DBackpropFilter"])
"""
    first = EMPTIED + ENABLED.format("") + explained + SHOWN + explained
    lines = run(first, tmp_path).lines()
    assert lines[0] == "0 1 kernel not checked ['FORCED']"
    assert lines[2] == "1  ['WRONG_KERNEL']"


def test_a_recurrent_convolution_of_open_batch_trains_once_its_kernels_are_checked(
    tmp_path: pathlib.Path,
) -> None:
    # The shape of its state is a guess, by what comes around the loop.
    trains = """
import keras
model = keras.Sequential(
    [keras.Input((2, 4, 4, 3)), keras.layers.ConvLSTM2D(5, 3, padding="same")])
model.compile("sgd", "mse", jit_compile=False)
history = model.fit(np.ones((3, 2, 4, 4, 3)), np.ones((3, 4, 4, 5)), verbose=0)
print(np.isfinite(history.history["loss"][0]), "Conv2D" in ran)
"""
    done = run(ENABLED.format("") + trains, tmp_path)
    assert done.lines() == ["True True"]
