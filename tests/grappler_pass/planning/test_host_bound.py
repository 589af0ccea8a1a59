"""Steps that are bound by starting operations: by the host of a GPU, or on a CPU."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.costs import CostModel, DeviceProfile
from grappler_pass.planning.decisions import UnaskedSteps, withdrawn
from grappler_pass.planning.plan import Cause, Plan
from tests.bert_on_an_h100 import VARIANTS, draft_of
from tests.grappler_pass.planning.drafts import planned

SIZE, PRODUCTS = 2048, 8


def chain(small_ops: int) -> Plan:
    """Plan products one behind the other, and as many operations on a scalar."""

    @tf.function
    def step(x: tf.Tensor, weight: tf.Tensor, scalar: tf.Tensor) -> tf.Tensor:
        for _ in range(PRODUCTS):
            x = x @ weight
        for _ in range(small_ops):
            scalar = tf.sin(scalar)
        return x, scalar

    matrix = tf.TensorSpec((SIZE, SIZE))
    scalar = tf.TensorSpec(())
    return tf_amp.audit(step, matrix, matrix, scalar, device_profile="h100").plan


def test_16_bits_are_not_credited_with_what_the_host_does_not_let_them_gain() -> None:
    plan = chain(small_ops=100)
    assert plan.is_empty
    causes = {row.reason.cause for row in plan.decisions}
    assert Cause.HOST in causes and Cause.MARGIN not in causes
    start = DeviceProfile.load("h100").roofline.dispatch_seconds
    assert plan.seconds_before == pytest.approx((PRODUCTS + 100) * start, rel=0.01)
    assert "(jit_compile=True) a step is expected to take at most" in plan.summary()


def test_where_the_device_is_the_bound_the_host_counts_for_nothing() -> None:
    plan = chain(small_ops=0)
    assert not plan.is_empty and not plan.host_bound
    assert plan.predicted_speedup > 1.3
    assert "jit_compile" not in plan.summary()


def test_xla_is_named_where_the_device_is_the_bound_but_its_kernels_are_fewer() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        for _ in range(20):
            x = tf.sin(x)
        return x

    # XLA makes one kernel of these.
    audited = tf_amp.audit(step, tf.TensorSpec((8192, 4096)), device_profile="h100")
    plan = audited.plan
    assert not plan.host_bound
    assert "(jit_compile=True) a step is expected to take at most" in plan.summary()
    milliseconds = float(plan.compiled_step.partition(" at most ")[2].split()[0])
    assert milliseconds < 1e3 * plan.seconds_after / 15


def on_cpu(size: int, small_ops: int) -> Plan:
    """Plan a product and as many operations on 64 numbers."""

    @tf.function
    def step(x: tf.Tensor, given: tf.Tensor) -> tf.Tensor:
        small = given
        for _ in range(small_ops // 2):
            small = tf.abs(small) * given
        return x @ x, small

    specs = tf.TensorSpec((size, size)), tf.TensorSpec((64,))
    return tf_amp.audit(step, *specs, device_profile="cpu-amx-bf16").plan


def test_a_cpu_that_starts_operations_for_most_of_a_step_is_told_of_compiling() -> None:
    bound = on_cpu(size=64, small_ops=1200)
    assert "(jit_compile=True) a step is expected to take at most" in bound.summary()
    assert "Starting the operations takes" in bound.summary()
    for size, small_ops in ((64, 300), (2048, 1200)):
        assert on_cpu(size, small_ops).compiling == ""


def test_casts_that_the_host_has_to_start_make_a_step_longer() -> None:
    text = """
    x = Placeholder shape=[8192,8192]
    w = Placeholder shape=[8192,8192]
    product = MatMul(x, w)
    y = Tanh(product)
    """
    profile = DeviceProfile.load("h100")
    slow = dataclasses.replace(profile.roofline, dispatch_seconds=2e-3)
    model = CostModel(dataclasses.replace(profile, roofline=slow))
    # One product and three casts, of 2 ms each, where the product takes 3.
    draft = planned(text, model, own_steps=UnaskedSteps())
    assert draft.plan.is_empty
    fast = planned(text, CostModel(profile), own_steps=UnaskedSteps())
    assert not fast.plan.is_empty and fast.plan.casts == 3


def test_what_xla_would_take_is_said_of_a_plan_that_is_withdrawn_too() -> None:
    text = "x = Placeholder shape=[8192,8192]\nw = Placeholder shape=[8192,8192]\n"
    text += "product = MatMul(x, w)\ny0 = Tanh(product)\n"
    text += "".join(f"y{i} = Tanh(y{i - 1})\n" for i in range(1, 40))
    model = CostModel(DeviceProfile.load("h100"))
    draft = planned(text, model, own_steps=UnaskedSteps())
    assert not draft.plan.is_empty
    kept = withdrawn(draft, Cause.TRIAL).plan
    assert kept.is_empty and kept.compiled_step == draft.plan.compiled_step != ""


def test_what_is_in_16_bits_as_given_is_priced_so() -> None:
    x = tf.TensorSpec((SIZE, SIZE), tf.bfloat16)
    step = tf.function(lambda x: x @ x)
    given = tf_amp.audit(step, x, device_profile="h100").plan
    wide = tf_amp.audit(
        step, tf.TensorSpec(x.shape, tf.float32), device_profile="h100"
    ).plan
    assert given.seconds_before < 0.6 * wide.seconds_before


@pytest.mark.usefixtures("disabled_afterwards")
@pytest.mark.parametrize("is_compiled", [False, True], ids=["graph", "compiled"])
def test_two_layers_of_bert_take_as_long_as_their_bound(is_compiled: bool) -> None:
    variant = VARIANTS["float32"]._replace(is_compiled=is_compiled)
    draft, weights = draft_of(variant, layers=2)
    profile = DeviceProfile.load("h100")
    host = draft.prices.host / profile.roofline.dispatch_seconds
    if is_compiled:
        assert host == 0.0 and not draft.plan.compiling
    else:
        # Keras' Adam starts 15 operations for each weight.
        assert 25 < host / weights < 33
        bound = max(draft.prices.host, sum(draft.prices.float32))
        assert draft.plan.seconds_before == pytest.approx(bound)
