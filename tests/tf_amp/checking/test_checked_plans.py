"""Plans use no kernel that is wrong: by the table, or by a check before the first step.

The program's kernel is wrong on every CPU: a gradient with explicit padding, which
TensorFlow adds up in 16 bits.
"""

from __future__ import annotations

import pathlib

from tests.forking import run_forked

PROGRAM = """
import numpy as np
import tensorflow as tf
import tf_amp
from grappler_pass.eligibility import known_wrong
from tf_amp.checking import running

def call(x, dy):
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=[1, 1, 2, 2], out_backprop=dy, strides=[1, 1, 1, 1],
        padding="EXPLICIT", explicit_paddings=[0] * 8)

ran = []
fault_in = running.fault_in
running.fault_in = lambda kernel: ran.append(kernel.op) or fault_in(kernel)
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


def test_without_either_the_fault_shows_and_the_plan_says_so(
    tmp_path: pathlib.Path,
) -> None:
    code = EMPTIED + ENABLED.format(", check=False") + SHOWN
    (line,) = run(code, tmp_path).lines()
    assert line == "True 0 ['1 kernel not checked (TF_AMP_CHECK=off)']"
    code = EMPTIED + ENABLED.format("") + SHOWN
    assert run(code, tmp_path, TF_AMP_CHECK="off").lines() == [line]


def test_what_there_is_no_time_for_is_used_and_checked_by_the_next_process(
    tmp_path: pathlib.Path,
) -> None:
    late = EMPTIED + (
        "from tf_amp.checking import known\nknown._LIMIT_SECONDS['CPU'] = -1.0\n"
    )
    tuned = {"TF_AMP_TUNE": "on"}
    done = run(late + ENABLED.format("") + SHOWN, tmp_path, **tuned)
    assert done.lines() == ["True 0 ['1 kernel not checked']"]
    done = run(EMPTIED + ENABLED.format("") + SHOWN, tmp_path, **tuned)
    assert done.lines() == ["False 1 []"]


def test_no_clock_decides_where_plans_are_to_be_the_same(
    tmp_path: pathlib.Path,
) -> None:
    late = EMPTIED + (
        "from tf_amp.checking import known\nknown._LIMIT_SECONDS['CPU'] = -1.0\n"
    )
    done = run(late + ENABLED.format("") + SHOWN, tmp_path, TF_AMP_TUNE="off")
    assert done.lines() == ["False 1 []"]
    determined = "tf.config.experimental.enable_op_determinism()\n"
    done = run(
        late + determined + ENABLED.format("") + SHOWN,
        tmp_path / "other",
        TF_AMP_TUNE="on",
    )
    assert done.lines() == ["False 1 []"]


def test_what_is_planned_for_another_device_is_not_run(tmp_path: pathlib.Path) -> None:
    device = ", device_profile='cpu-avx512-bf16'"
    done = run(EMPTIED + ENABLED.format(device) + SHOWN, tmp_path)
    assert done.lines() == ["True 0 ['']"]


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
