"""Batches divided among unlike devices."""

from __future__ import annotations

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_amp import ConfigError
from tf_amp.placement import batch_shares, measured_throughputs


def test_shares_follow_throughput_and_each_device_computes_in_its_fastest_type() -> (
    None
):
    found = batch_shares(
        256,
        {"GPU:0": {"float32": 400.0, "float16": 1200.0}, "GPU:1": {"float32": 400.0}},
    )
    assert [(s.device, s.dtype, s.examples) for s in found.shares] == [
        ("GPU:0", "float16", 192),
        ("GPU:1", "float32", 64),
    ]
    assert found.weights() == (0.75, 0.25)
    assert found.seconds < found.equal_seconds


def test_a_near_tie_of_types_goes_to_float32() -> None:
    found = batch_shares(8, {"GPU:0": {"float32": 100.0, "bfloat16": 101.0}})
    assert found.shares[0].dtype == "float32"


@settings(max_examples=100)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9), st.integers(0, 5000))
def test_shares_sum_to_the_batch_and_none_is_idle(
    rates: list[float], extra: int
) -> None:
    batch = len(rates) + extra
    found = batch_shares(batch, {f"GPU:{i}": rate for i, rate in enumerate(rates)})
    counts = [share.examples for share in found.shares]
    assert sum(counts) == batch and min(counts) >= 1
    # No example is better off elsewhere.
    for i, share in enumerate(found.shares):
        others = [s for j, s in enumerate(found.shares) if j != i]
        if share.examples > 1 and share.seconds == found.seconds:
            assert all(
                (o.examples + 1) / o.examples_per_second >= share.seconds * 0.999999
                for o in others
            )


def test_a_slow_device_is_idle_only_where_that_is_allowed() -> None:
    rates = {"GPU:0": 1e6, "CPU:0": 1.0}
    assert [s.examples for s in batch_shares(8, rates).shares] == [7, 1]
    idle = batch_shares(8, rates, allow_idle=True)
    assert [s.examples for s in idle.shares] == [8, 0]


@pytest.mark.parametrize(
    ("batch", "rates", "message"),
    [
        (1, {"GPU:0": 1.0, "GPU:1": 1.0}, "received 1; allowed are integers from 2"),
        (8, {}, "received none"),
        (8, {"GPU:0": {"int8": 1.0}}, "the type 'int8'; allowed are float32"),
        (8, {"GPU:0": 0.0}, "received 0.0; allowed are positive numbers"),
        (8, {"GPU:0": {}}, "received no type"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    batch: int, rates: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_shares(batch, rates)


def test_a_step_keeps_what_its_decorator_says() -> None:
    @tf.function(jit_compile=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        return x if tf.reduce_sum(x) > 0 else -x

    rates = measured_throughputs(
        step, tf.ones((4, 2)), ["CPU:0"], dtypes=["float32"], rounds=1
    )
    assert rates["CPU:0"]["float32"] > 0


def test_a_concrete_function_cannot_be_measured_in_each_type() -> None:
    step = tf.function(lambda x: x + x).get_concrete_function(tf.ones((2, 2)))
    with pytest.raises(
        ConfigError, match=r"ConcreteFunction .*; give the tf\.function"
    ):
        measured_throughputs(step, tf.ones((2, 2)), ["CPU:0"])
