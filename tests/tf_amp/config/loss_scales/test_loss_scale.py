"""Loss scales against models of a few lines."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scaling import figures, scaled_by, stepper
from tf_amp import (
    DynamicLossScale,
    LossScale,
    NoOpLossScale,
    StaticLossScale,
    StatisticalLossScale,
    loss_scale_state,
)
from tf_amp.config.loss_scales import adaptive
from tf_amp.training import checkpoint_record
from tf_amp.training.checkpoint_record import saved_scale


def model(spec, overflows):
    scale, good, overflown, skipped = spec.initial, 0, 0, 0
    for overflow in overflows:
        good, skipped = (0, skipped + 1) if overflow else (good + 1, skipped)
        overflown += overflow
        if overflow and overflown >= spec.hysteresis:
            scale, overflown = max(scale * spec.backoff_factor, spec.minimum), 0
        if good >= spec.growth_interval:
            scale, good = min(scale * spec.growth_factor, spec.maximum), 0
            overflown = 0
        yield scale, good, skipped


@st.composite
def dynamic_loss_scales(draw):
    low, initial, high = sorted(draw(st.integers(-8, 40)) for _ in range(3))
    return DynamicLossScale(
        initial=2.0**initial,
        growth_interval=draw(st.integers(1, 4)),
        growth_factor=2.0 ** draw(st.integers(1, 3)),
        backoff_factor=2.0 ** -draw(st.integers(1, 3)),
        minimum=2.0**low,
        maximum=2.0**high,
        hysteresis=draw(st.integers(1, 3)),
    )


@settings(max_examples=8)
@given(
    spec=dynamic_loss_scales(),
    overflows=st.lists(st.booleans(), min_size=10, max_size=60),
)
def test_a_dynamic_loss_scale_does_what_a_ten_line_model_does(spec, overflows):
    step = stepper(spec)
    for overflow, expected in zip(overflows, model(spec, overflows), strict=True):
        gradient = float(step(tf.constant(math.inf if overflow else 1.5)))
        assert gradient == (math.inf if overflow else 3.0)
        assert figures(spec) == expected


@pytest.mark.parametrize("overflows", [False, True])
def test_a_thousand_changes_leave_the_scale_within_its_bounds(overflows):
    spec = DynamicLossScale(growth_interval=1, minimum=2.0**-14, maximum=2.0**100)
    step = stepper(spec)
    for _ in range(1000):
        step(tf.constant(math.nan if overflows else 1.0))
    assert loss_scale_state(spec).scale == (2.0**-14 if overflows else 2.0**100)
    # The scale is a variable: nothing is traced again.
    assert step.experimental_get_tracing_count() == 1
    # Peers let theirs reach inf or 0 and stay there: the next steps are as any other.
    for _ in range(3):
        assert float(step(tf.constant(1.0))) == 2.0


def test_an_overflow_at_the_minimum_raises_when_told_to():
    spec = DynamicLossScale(initial=2.0, at_minimum="raise")
    step = stepper(spec)
    step(tf.constant(math.inf))
    assert figures(spec) == (1.0, 0, 1)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"lowest loss scale, 1\.0"
    ):
        step(tf.constant(math.inf))
    assert float(step(tf.constant(1.0))) == 2.0


@pytest.mark.parametrize(("steps_between", "told"), [(None, 1), (10, 3)])
def test_an_overflow_at_the_minimum_is_told_now_and_then(
    steps_between, told, capfd, monkeypatch
):
    assert adaptive.STEPS_BETWEEN_WARNINGS == 1000
    if steps_between is not None:
        monkeypatch.setattr(adaptive, "STEPS_BETWEEN_WARNINGS", steps_between)
    step = stepper(DynamicLossScale(initial=1.0))
    for _ in range(30):
        step(tf.constant(math.inf))
    assert capfd.readouterr().err.count("overflow at the lowest loss scale") == told


def test_a_static_loss_scale_stays_and_counts():
    spec = StaticLossScale(64)
    step = stepper(spec)
    for factor in (1.0, 1.0, math.inf, 1.0):
        step(tf.constant(factor))
    assert figures(spec) == (64.0, 1, 1)


def test_a_scale_that_is_no_power_of_two_rounds_twice_at_most():
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    with scaled_by(StaticLossScale(1000.0)):
        x = tf.constant(values)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x * x)
        gradient = tape.gradient(loss, x).numpy()
    np.testing.assert_allclose(gradient, 2 * values, rtol=2 * 2.0**-23)


@pytest.mark.parametrize("deviation", [0.0, 1.5])
def test_a_statistical_loss_scale_follows_its_formula(deviation):
    spec = StatisticalLossScale(decay=0.9)
    step = stepper(spec)
    rng = np.random.default_rng(1)
    logarithms = rng.normal(-6.0, deviation, size=60)
    mean = square = weight = 0.0
    for logarithm in logarithms:
        assert math.isfinite(step(tf.constant(0.5 * 2.0**logarithm, tf.float32)))
        mean = 0.9 * mean + 0.1 * logarithm
        square = 0.9 * square + 0.1 * logarithm**2
        weight = 0.9 * weight + 0.1
        spread = math.sqrt(max(square / weight - (mean / weight) ** 2, 0.0))
        exponent = 16 - mean / weight - 3.09 * spread
        # Rounded down; float32 sees the figures a little differently.
        scale = loss_scale_state(spec).scale
        assert 2 ** (exponent - 1.1) < scale < 2 ** (exponent + 0.1)


def test_a_statistical_loss_scale_takes_overflows_for_twice_what_would_have_fitted():
    spec = StatisticalLossScale(initial=2.0**15, deviations=0.0, decay=0.5)
    step = stepper(spec)
    step(tf.constant(math.inf))
    assert loss_scale_state(spec).scale <= 2.0**14
    step(tf.constant(0.5 * 2.0**0.75))
    # Zeros say nothing.
    step(tf.constant(0.0))
    # The logarithms are 2, of which a gradient of 2^1 would have fitted, and 0.75.
    mean = (2 * 0.25 + 0.75 * 0.5) / 0.75
    assert loss_scale_state(spec).scale == 2.0 ** math.floor(16 - mean)


def test_a_statistical_loss_scale_survives_gradients_beyond_float32():
    spec = StatisticalLossScale(decay=0.5)
    with scaled_by(spec):
        x = tf.constant(1.0, tf.float64)
        for factor in (1e300, *[2.0**-6] * 40):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = factor * x
            assert float(tape.gradient(y, x)) == factor
    # 16 + 6, rounded down.
    assert loss_scale_state(spec).scale in (2.0**21, 2.0**22)


def test_a_loss_scale_of_ones_own_takes_a_few_lines():
    class Halving(LossScale):
        def initial_state(self):
            return {"scale": 1024.0}

        def adjust(self, state, seen):
            return {} if seen.finite else {"scale": state["scale"] / 2}

    spec = Halving()
    step = stepper(spec)
    for factor in (1.0, math.inf, 1.0, 1.0):
        step(tf.constant(factor))
    assert figures(spec) == (512.0, 2, 1)


class Doubling(StaticLossScale):
    """Changes at finite steps, at which the class before it rests."""

    def adjust(self, state, seen):
        return {"scale": state["scale"] * 2} if seen.finite else {}


class Resting(Doubling):
    """Says itself when it rests."""

    def rests(self, state):
        return state["scale"] >= 16


class Wrapping:
    """Has everything of another loss scale but what is done after a step."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def adjust(self, state, seen):
        return Doubling.adjust(self, state, seen)


@pytest.mark.parametrize(
    ("spec", "scale"),
    [
        (Doubling(4.0), 32.0),
        (Resting(4.0), 16.0),
        (Wrapping(StaticLossScale(4.0)), 32.0),
    ],
)
def test_who_overrides_what_is_done_after_a_step_has_it_done_after_each(spec, scale):
    step = stepper(spec)
    for _ in range(3):
        step(tf.constant(1.0))
    assert loss_scale_state(spec).scale == scale


def test_a_scale_that_changes_is_resumed_as_saved_and_one_that_stays_as_given(
    monkeypatch,
):
    monkeypatch.setattr(checkpoint_record, "_restored", [])
    saved = {"scale": 32.0, "good_steps": 3, "skipped_steps": 0, "finite": 1}
    for spec, scale in ((Doubling(4.0), 32.0), (StaticLossScale(4.0), 4.0)):
        checkpoint_record.wait((saved_scale(spec, saved),), "a checkpoint")
        fresh = {**saved, "scale": 4.0}
        assert checkpoint_record.resumed(spec, fresh)["scale"] == scale


@pytest.mark.parametrize("scale", [2.0**126, 2.0**-126])
@pytest.mark.parametrize("wrap", [tf.function, lambda function: function])
def test_the_outermost_scales_do_no_harm(scale, wrap):
    spec = StaticLossScale(scale)
    factor = tf.constant(2.0**-60 if scale > 1 else 8.0)

    @wrap
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * factor
        return tape.gradient(y, x)

    with scaled_by(spec):
        assert float(slope(tf.constant(1.0))) == float(factor)
    assert figures(spec) == (scale, 1, 0)


def halve_scales(loss_scale, state, seen):
    return {"scales": state["scale"] / 2}


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ({"adjust": halve_scales}, "returned 'scales'; initial_state names scale"),
        ({"initial_state": lambda _: {"factor": 8.0}}, "returned factor=8.0; it must"),
        (
            {"initial_state": lambda _: {"scale": "8"}},
            "scale='8'; it must hold a number",
        ),
    ],
)
def test_a_loss_scale_of_ones_own_that_is_wrong_is_told_what_is(method, told):
    wrong = type("Wrong", (LossScale,), method)
    # AutoGraph wraps what is raised while a function is traced.
    with pytest.raises(Exception, match=rf"Wrong\..*{told}"):
        stepper(wrong())


def test_without_scaling_a_function_stays_as_it_is():
    def traced():
        @tf.function
        def slope(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = x**3
            return tape.gradient(y, x)

        graph = slope.get_concrete_function(tf.TensorSpec([2])).graph.as_graph_def()
        return graph.SerializeToString(deterministic=True)

    plain = traced()
    with scaled_by(NoOpLossScale()):
        assert traced() == plain


def test_state_is_made_per_object_not_per_value():
    first, second = DynamicLossScale(), DynamicLossScale()
    stepper(first)(tf.constant(math.inf))
    stepper(second)(tf.constant(1.0))
    assert (figures(first)[2], figures(second)[2]) == (1, 0)
