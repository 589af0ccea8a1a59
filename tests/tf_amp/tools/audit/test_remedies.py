"""What an audit says of ops whose casts eat what 16 bits save."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.graph.op_traits import INPUT
from grappler_pass.planning.plan import Cause, Reason
from tf_amp.tools.obstacles import Finding, finding_of


def product_obstacle(function, *shapes):
    specs = [tf.TensorSpec(shape) for shape in shapes]
    audit = tf_amp.audit(tf.function(function), *specs, device_profile="v100")
    return next(each for each in audit.obstacles if each.op == "MatMul")


def test_a_product_whose_casts_take_a_quarter_is_cast_heavy():
    heavy = product_obstacle(lambda x, w: x @ w, (2048, 2048), (2048, 2048))
    assert heavy.dtype == "float16"
    assert heavy.why.startswith("casts take ") and heavy.why.endswith(" ms of it")
    assert heavy.remedy == "feed and fetch 16 bits (Placeholder)"
    light = product_obstacle(lambda x, w: x @ w, (8192, 8192), (8192, 8192))
    assert "casts" not in light.why


def test_a_product_that_is_not_worth_its_casts_is_said_to_be_faster_alone():
    dear = product_obstacle(lambda x, w: x @ w, (4096, 32), (32, 4096))
    assert dear.dtype == "float32"
    assert dear.why == "16 bits are faster, the casts around it are not worth it"
    assert dear.remedy == "feed and fetch 16 bits (Placeholder)"


def row(**given):
    return SimpleNamespace(**given)


def neighbor(cause, detail=""):
    return row(op="Exp", reason=Reason(cause, detail))


INPUT_NEIGHBOR = neighbor(Cause.FIXED, INPUT)
CONSTANT = neighbor(Cause.FIXED, "a constant")
DENIED = neighbor(Cause.DENY, "range hazard")


def case(*, is_low, cast, float32=4.0, low=1.0, cause="ALLOW", beside=()):
    """A node that takes `low` seconds in 16 bits, and `cast` for its casts."""
    decision = row(cast_seconds=cast, seconds_float32=float32, seconds_low=low)
    return row(
        is_low=is_low,
        cause=cause,
        decision=decision,
        seconds=(low if is_low else float32) + cast,
        product=None,
        works=(),
        weight=1.0,
        roofline=row(
            multiprocessors=None, overhead_seconds=1e-6, dispatch_seconds=1e-6
        ),
        float32_neighbors=lambda: iter(beside),
    )


@pytest.mark.parametrize(
    ("beside", "remedy"),
    [
        ([INPUT_NEIGHBOR], "feed and fetch 16 bits (Exp)"),
        ([neighbor(Cause.PRESERVED)], "feed and fetch 16 bits (Exp)"),
        ([DENIED], "free its neighbor Exp: the op is denied in 16 bits"),
        ([CONSTANT], ""),
        ([CONSTANT, INPUT_NEIGHBOR, DENIED], "feed and fetch 16 bits (Exp)"),
        ([], ""),
    ],
    ids=["input", "output", "denied", "constant", "several", "none"],
)
def test_the_remedy_is_to_free_the_neighbor(beside, remedy):
    found = finding_of(case(is_low=True, cast=1.0, beside=beside))
    assert found == Finding("casts take 1e+03 ms of it", remedy)


def test_casts_of_less_than_a_quarter_are_not_the_reason():
    for cast, is_reason in ((0.32, False), (0.34, True)):
        found = finding_of(case(is_low=True, cast=cast))
        assert ("casts" in found.why) == is_reason


def test_what_is_no_faster_in_16_bits_is_not_blamed_on_casts():
    slower = case(is_low=False, cast=0.0, low=5.0, cause="COST")
    slower.decision.reason = "float32 is at least as fast"
    assert finding_of(slower).why == "float32 is at least as fast"
    kept = case(is_low=False, cast=0.0, cause="CASTS", beside=[DENIED])
    assert "casts around it" in finding_of(kept).why
    # Of a plan that gains too little as a whole, its casts are not the reason.
    dropped = case(is_low=False, cast=0.0, cause="MARGIN")
    dropped.decision.reason = "the plan gains too little"
    assert finding_of(dropped).why == "the plan gains too little"


def test_what_has_no_product_is_priced_for_those_who_ask():
    spec = tf.TensorSpec([4096, 4096])
    wave = tf.function(lambda x: tf.tanh(x) + 1.0)
    audit = tf_amp.audit(wave, spec, device_profile="v100")
    assert audit.plan.is_empty
    assert audit.plan.seconds_before == audit.plan.seconds_after > 0.0
    assert {each.op for each in audit.obstacles} >= {"Tanh"}
    plan = tf_amp.explain(wave, spec)
    assert plan.is_empty
    assert plan.seconds_before == plan.seconds_after > 0.0
