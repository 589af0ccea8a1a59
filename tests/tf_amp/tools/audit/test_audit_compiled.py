"""Audits of what XLA compiles: planned as compiled, wherever it is called."""

from __future__ import annotations

import json
import pathlib

import pytest
import tensorflow as tf

import tf_amp
from tests.forking import run_forked_command

SPEC, LARGE = tf.TensorSpec((1024, 1024)), tf.TensorSpec((4096, 4096))
SCRIPT = """
import tensorflow as tf

@tf.function(jit_compile=True)
def compiled(x):
    return tf.nn.relu(x @ x)

compiled(tf.ones((1024, 1024)))
"""


def looping(times: int):
    """Return a compiled function with products in a loop."""
    w = tf.Variable(tf.ones((1024, 1024)))

    @tf.function(jit_compile=True)
    def compiled(x):
        return tf.while_loop(
            lambda i, x: i < times, lambda i, x: (i + 1, tf.tanh(x @ w)), (0, x)
        )[1]

    return compiled


def test_a_function_is_audited_with_the_compiled_ones_that_it_calls() -> None:
    @tf.function(jit_compile=True)
    def compiled(x):
        return tf.nn.relu(x @ x)

    outer = tf.function(lambda x: compiled(x))
    alone, within = (
        tf_amp.audit(each, LARGE, device_profile="h100") for each in (compiled, outer)
    )
    assert "h100 under XLA" in alone.plan.profile
    assert alone.ratio > 1.1 and within.ratio == pytest.approx(alone.ratio, rel=0.1)
    products = [row for row in within.plan.decisions if row.op == "MatMul"]
    assert products and all(row.slot.node.startswith("compiled/") for row in products)


def test_what_holds_a_compiled_loop_back_counts_each_time_round() -> None:
    once, often = (
        tf_amp.audit(looping(n), SPEC, device_profile="h100") for n in (1, 11)
    )
    products = [
        next(each for each in audit.obstacles if each.op == "MatMul")
        for audit in (once, often)
    ]
    assert products[1].seconds == pytest.approx(11 * products[0].seconds, rel=0.01)
    assert all("while" in name for name in products[0].nodes)


def test_the_compiled_functions_of_a_script_are_audited_as_such(
    tmp_path: pathlib.Path,
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    options = ("--device-profile", "h100", "--json")
    done = run_forked_command(["-m", "tf_amp", "audit", *options, str(script)])
    (found,) = json.loads("\n".join(done.lines()))
    direct = tf_amp.audit(
        tf.function(lambda x: tf.nn.relu(x @ x), jit_compile=True),
        SPEC,
        device_profile="h100",
    )
    assert found["ratio"] == pytest.approx(direct.ratio, rel=0.01)
    assert found["seconds_float32"] == pytest.approx(direct.plan.seconds_before)
