"""The lines that a process prints on stderr about its mixed precision."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.forking import run_forked
from tests.tf_amp.measuring.test_step_comparison import PRELUDE

TRAINING = """
import tensorflow as tf

weight = tf.Variable(tf.random.stateless_normal((1024, 1024), [1, 2]) / 32)
data = tf.random.stateless_normal((256, 1024), [3, 4])

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.nn.relu(data @ weight) @ weight) ** 2)
    weight.assign_sub(0.1 * tape.gradient(loss, weight))
    return loss
"""
ON = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1"}
GAINS = {**ON, "TF_AMP_DEVICE_PROFILE": "cpu-amx-bf16"}
STEPS = "for _ in range({}):\n    step()\n"
# As a long job would be.
LONG = "from tf_amp.rewriting import notices\nnotices._LONG_SECONDS = 0.0\n"


def lines_of(code: str, env: dict[str, str]) -> list[str]:
    """Run a program and return what it says of itself on stderr."""
    outcome = run_forked(code, env=env)
    outcome.lines()
    return re.findall("^tf-amp: (.*)$", outcome.err, re.MULTILINE)


def test_the_first_rewritten_graph_is_announced_once() -> None:
    again = "@tf.function\ndef other():\n    return data @ weight @ weight\nother()\n"
    (line,) = lines_of(TRAINING + STEPS.format(2) + again, GAINS)
    assert re.fullmatch(
        r"step: \d+ of \d+ operations in bfloat16, expected \d\.\d\dx; "
        r"TF_AMP_VERBOSE=0 hides this \(AMP101\)",
        line,
    )


@pytest.mark.parametrize(
    "env", [{"TF_AMP_VERBOSE": "0"}, {"TF_ENABLE_AUTO_MIXED_PRECISION": "0"}]
)
def test_nothing_is_said_where_nobody_wants_it_or_nothing_happens(env) -> None:
    assert lines_of(LONG + TRAINING + STEPS.format(1), {**GAINS, **env}) == []


def test_a_graph_that_stays_float32_says_why_and_what_to_do() -> None:
    generic = {**ON, "TF_AMP_DEVICE_PROFILE": "cpu-generic"}
    (line,) = lines_of(TRAINING + STEPS.format(1), generic)
    assert line.startswith("step stays float32: bfloat16 is not expected to be faster")
    assert "`tf-amp audit --device-profile NAME SCRIPT`" in line
    assert line.endswith("(AMP102)")


def test_a_function_traced_before_is_named_as_the_mistake_it_is() -> None:
    late = """
import tf_amp
step.get_concrete_function()
tf_amp.enable()
step()
"""
    (line,) = lines_of(TRAINING + late, {})
    assert "enable it before the first call of the function" in line
    assert line.endswith("(AMP103)")


def test_steps_that_ran_both_ways_and_the_end_of_a_long_job_are_reported(
    tmp_path: pathlib.Path,
) -> None:
    program = f"{PRELUDE}{LONG}slow = 'float32'\ntf_amp.enable()\nlabels_of(80)\n"
    settings = {"TF_AMP_TUNE": "budget", "TF_AMP_CACHE": str(tmp_path)}
    rewritten, compared, summary = lines_of(program, settings)
    assert rewritten.endswith("(AMP101)")
    assert re.fullmatch(
        r"step: \d+\.\d\d times as fast as float32 in \d+ pairs of its own steps; "
        r"16 bits stay \(AMP104\)",
        compared,
    )
    assert re.match(
        r"\d+ s in mixed precision; busiest graph of 1: step, 80 calls, "
        r"\d+\.\d\d times as fast as float32, measured; ",
        summary,
    )
    assert summary.endswith("(AMP105)")
