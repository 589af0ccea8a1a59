"""Plans of compiled functions, and the switch that is all it takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tensorflow as tf

import tf_amp
from tests.fresh_process import output_of
from tf_amp.errors import NotMeasurableError

X = tf.TensorSpec((4096, 1024))
COMPILED = """
    @tf.function(jit_compile=True)
    def compiled(x, y):
        return tf.nn.relu(x @ y)

    @tf.function
    def outer(x, y):
        return compiled(x, y)

    print(dtype_of(compiled), dtype_of(outer))
"""


@pytest.fixture(autouse=True)
def planned_for_a_gpu() -> Iterator[None]:
    tf_amp.enable(device_profile="a100", strict=True)
    yield
    tf_amp.disable()


def compiled_loop(times: int):
    w = tf.Variable(tf.ones((1024, 1024)))

    @tf.function(jit_compile=True)
    def looping(x):
        for _ in tf.range(times):
            for _ in range(4):
                x = tf.tanh(x @ w)
        return x

    return looping


def test_the_plan_of_a_loop_counts_each_time_round() -> None:
    once, twice, often = (tf_amp.explain(compiled_loop(n), X) for n in (1, 2, 11))
    round_seconds = twice.seconds_before - once.seconds_before
    grown = often.seconds_before - once.seconds_before
    assert grown == pytest.approx(10 * round_seconds, rel=0.01)
    assert 0.0 < once.seconds_before - round_seconds < 0.1 * once.seconds_before
    products = [d for d in often.decisions if d.op == "MatMul"]
    assert len(products) == 4 and all(d.is_low for d in products)
    assert all("while_body" in d.slot.node for d in products)


def test_explaining_agrees_with_what_is_done() -> None:
    looping = compiled_loop(3)
    explained = tf_amp.explain(looping, X)
    done = tf_amp.plans()[-1]
    low = {d.slot.node for d in done.decisions if d.is_low}
    assert {
        d.slot.node.partition("/")[2] for d in explained.decisions if d.is_low
    } == low
    assert tf_amp.explain(looping, X) == explained


def test_a_function_is_explained_with_the_compiled_ones_it_calls() -> None:
    looping = compiled_loop(2)
    plan = tf_amp.explain(tf.function(lambda x: looping(x) + 1.0), X)
    alone = tf_amp.explain(looping, X)
    names = {d.slot.node for d in plan.decisions if d.op == "MatMul"}
    assert names == {
        f"looping/{d.slot.node}" for d in alone.decisions if d.op == "MatMul"
    }
    assert plan.seconds_before >= alone.seconds_before


def test_measuring_single_operations_is_refused_by_name() -> None:
    with pytest.raises(NotMeasurableError, match="looping is compiled by XLA"):
        tf_amp.explain(compiled_loop(2), X, measure=True)


def test_the_environment_variable_is_all_it_takes() -> None:
    env = {"TF_ENABLE_AUTO_MIXED_PRECISION": "bfloat16", "TF_AMP_OPT_LEVEL": "O2"}
    assert output_of(COMPILED, env=env) == ["bfloat16 bfloat16"]
