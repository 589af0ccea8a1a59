"""Steps are skipped whose gradients overflowed before others were taken."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import are_equal, figures, scaled_by, values_of
from tests.tf_amp.training.optimizers.test_exact_skip import X, gradients_of, weights
from tf_amp import DynamicLossScale
from tf_amp.training.scale_state import states_in_use

BAD = X * np.float32(np.inf)
PLACES = ["nothing", "gradients", "step", "both"]


def momentum():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def check_skipped(apply, variables, optimizer):
    """Take a good step, then one that overflows before another call does not."""
    apply(X, X)
    everything = [*variables, *optimizer.variables]
    before = values_of(everything)
    apply(BAD, X)
    assert are_equal(before, values_of(everything))
    apply(X, X)
    assert int(optimizer.iterations) == 2


@pytest.mark.parametrize(
    ("traced", "company"),
    [*((place, 0.1) for place in PLACES), ("nothing", 0.0), ("both", 0.0)],
)
def test_an_overflow_taken_first_is_skipped_when_it_is_applied_last(traced, company):
    models, optimizers = [weights(), weights()], [momentum(), momentum()]
    compute = tf.function(gradients_of) if traced in PLACES[1::2] else gradients_of

    def update(number, slopes):
        if company:
            given = zip(slopes, models[number], strict=True)
            slopes = [slope + company * weight for slope, weight in given]
        optimizers[number].apply(slopes, models[number])

    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.build(model)
    if traced in PLACES[2:]:
        update = tf.function(update)

    def step(first, second):
        inputs = zip(models, map(tf.constant, (first, second)), strict=True)
        slopes = [compute(model, x) for model, x in inputs]
        for number in (1, 0):
            update(number, slopes[number])

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        check_skipped(step, models[0], optimizers[0])
        assert int(optimizers[1].iterations) == 3
        assert figures(loss_scale)[2] == 1


@pytest.mark.parametrize("traced", [False, True])
def test_each_gradient_of_a_persistent_tape_is_skipped_for_itself(traced):
    models, optimizers = [weights(), weights()], [momentum(), momentum()]

    def update(number, slope):
        optimizers[number].apply([slope], [models[number][0]])

    apply = tf.function(update) if traced else update

    def step(*inputs):
        with tf.GradientTape(persistent=True) as tape:
            losses = [
                tf.reduce_sum((x @ model[0]) ** 2)
                for model, x in zip(models, map(tf.constant, inputs), strict=True)
            ]
        slopes = [
            tape.gradient(loss, model[0])
            for loss, model in zip(losses, models, strict=True)
        ]
        for number in (1, 0):
            apply(number, slopes[number])

    for optimizer, model in zip(optimizers, models, strict=True):
        optimizer.build([model[0]])
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        check_skipped(step, models[0], optimizers[0])
        assert int(optimizers[1].iterations) == 3


def test_scales_of_models_that_are_no_more_are_not_looked_at():
    """A search over settings trains one model after another in a process."""

    def train():
        model, optimizer = weights(), momentum()
        optimizer.build(model)
        with scaled_by(DynamicLossScale(initial=2.0**10)):
            optimizer.apply(gradients_of(model, tf.constant(X)), model)
            return len(states_in_use())

    counts = []
    for _ in range(4):
        counts.append(train())
        gc.collect()
    assert counts == [counts[0]] * 4
