"""Steps are skipped whose gradients overflowed out of sight and got company since."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import are_equal, figures, scaled_by, values_of
from tests.tf_amp.training.optimizers.test_exact_skip import (
    X,
    check_skips,
    gradients_of,
    momentum,
    weights,
)
from tf_amp import DynamicLossScale

v1 = tf.compat.v1
BAD = X * np.float32(np.inf)


def decayed(slopes, variables):
    return [s + 0.1 * w for s, w in zip(slopes, variables, strict=True)]


def in_loop(variables, batches):
    """Return sums of gradients, of which any may overflow."""
    total = [tf.zeros_like(v) for v in variables]
    for i in tf.range(2):
        slopes = gradients_of(variables, batches[i])
        total = [t + s for t, s in zip(total, slopes, strict=True)]
    return total


def test_an_eager_step_is_skipped_for_its_own_overflow_only():
    models = [weights(), weights()]
    optimizers = [*map(momentum, models)]
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        for batches in ([X, BAD], [BAD, X]):
            slopes = [
                gradients_of(model, tf.constant(x))
                for model, x in zip(models, batches, strict=True)
            ]
            for optimizer, given, model in zip(optimizers, slopes, models, strict=True):
                optimizer.apply(given, model)
    assert [int(optimizer.iterations) for optimizer in optimizers] == [1, 1]


def test_an_overflow_of_long_ago_skips_nothing():
    variables, optimizer = weights(), keras.optimizers.SGD(0.1)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        compute = tf.function(gradients_of)
        good = compute(variables, tf.constant(X))
        optimizer.apply(decayed(good, variables), variables)
        bad = compute(variables, tf.constant(BAD))
        optimizer.apply(decayed(bad, variables), variables)
        assert int(optimizer.iterations) == 1
        for _ in range(2):
            optimizer.apply(decayed(good, variables), variables)
    assert int(optimizer.iterations) == 3


@pytest.mark.parametrize("company", ["decay", "another variable", "a second call"])
def test_gradients_of_a_nested_function_keep_their_overflow_in_company(company):
    variables, other = weights(), tf.Variable(1.0)
    with_other = company == "another variable"
    optimizer = momentum([other, *variables] if with_other else variables)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        inner = tf.function(gradients_of)

        @tf.function
        def step(x):
            slopes, to_train = inner(variables, x), variables
            if company == "decay":
                slopes = decayed(slopes, variables)
            elif company == "a second call":
                again = inner(variables, tf.constant(X))
                slopes = [a + b for a, b in zip(slopes, again, strict=True)]
            else:
                with tf.GradientTape() as tape:
                    loss = other * other
                slopes = [tape.gradient(loss, other), *slopes]
                to_train = [other, *variables]
            optimizer.apply(slopes, to_train)

        check_skips(step, lambda: [other, *variables, *optimizer.variables])


def test_an_overflow_of_one_nested_function_does_not_skip_the_step_of_another():
    models = [weights(), weights()]
    optimizers = [*map(momentum, models)]
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        inner = tf.function(gradients_of)

        @tf.function
        def step(*batches):
            slopes = [inner(m, x) for m, x in zip(models, batches, strict=True)]
            for optimizer, given, model in zip(optimizers, slopes, models, strict=True):
                optimizer.apply(decayed(given, model), model)

        for batches in ([X, X], [X, BAD], [BAD, X], [BAD, BAD]):
            step(*map(tf.constant, batches))
        assert figures(loss_scale)[2] == 4
    assert [int(optimizer.iterations) for optimizer in optimizers] == [2, 2]


def test_steps_of_a_function_that_takes_several_are_distinguished():
    variables, optimizer = weights(), keras.optimizers.SGD(0.1)
    optimizer.build(variables)
    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        inner = tf.function(gradients_of)

        @tf.function
        def steps(batches):
            taken = []
            for i in range(4):
                before = tf.identity(optimizer.iterations)
                slopes = inner(variables, batches[i])
                optimizer.apply(decayed(slopes, variables), variables)
                taken.append(tf.identity(optimizer.iterations) - before)
            return tf.stack(taken)

        for bad in ([0], [1, 2], [3], []):
            batches = np.stack([BAD if i in bad else X for i in range(4)])
            taken = steps(tf.constant(batches)).numpy()
            assert taken.tolist() == [int(i not in bad) for i in range(4)]
        assert figures(loss_scale)[2] == 4


def test_an_overflow_in_any_round_of_a_loop_skips_the_step():
    variables = weights()
    optimizer = momentum(variables)
    with scaled_by(DynamicLossScale(initial=2.0**10)):

        @tf.function
        def step(batches):
            optimizer.apply(in_loop(variables, batches), variables)

        step(tf.constant(np.stack([X, X])))
        before = values_of([*variables, *optimizer.variables])
        for batches in ([X, BAD], [BAD, X]):
            step(tf.constant(np.stack(batches)))
            assert are_equal(before, values_of([*variables, *optimizer.variables]))
        step(tf.constant(np.stack([X, X])))
        assert int(optimizer.iterations) == 2


def test_a_function_nested_in_a_graph_with_a_session_keeps_its_overflow():
    with tf.Graph().as_default(), scaled_by(DynamicLossScale(initial=2.0**10)):
        x = v1.placeholder(tf.float32, [None, 4])
        weight = v1.get_variable("w", [4, 1], use_resource=True)

        @tf.function
        def slopes(x):
            return tf.gradients(tf.reduce_mean((x @ weight) ** 2), [weight])

        optimizer = v1.train.AdamOptimizer(0.1)
        train = optimizer.apply_gradients([(slopes(x)[0] + 0.1 * weight, weight)])
        watched = [weight, *optimizer.variables()]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {x: X})
            before = session.run(watched)
            session.run(train, {x: BAD})
            assert are_equal(before, session.run(watched))
            session.run(train, {x: X})
            assert not are_equal(before, session.run(watched))


def test_what_knows_nothing_of_gradients_adds_nothing_to_a_step():
    variables, optimizer = weights(), keras.optimizers.SGD(0.1)
    optimizer.build(variables)
    with scaled_by(DynamicLossScale(initial=2.0**10)):
        clip = tf.function(lambda slopes: tf.clip_by_global_norm(slopes, 1.0)[0])

        @tf.function
        def step(x):
            optimizer.apply(clip(gradients_of(variables, x)), variables)

        check_skips(step, lambda: [*variables, *optimizer.variables])
        graph = step.get_concrete_function(tf.constant(X)).graph
    conditions = [op for op in graph.get_operations() if op.type.endswith("If")]
    # What notes the outcome, and the update.
    assert len(conditions) == 2


def _in_function(compute, default):
    return tf.function(compute)()


def _in_branch(compute, default):
    return tf.cond(tf.size(default) > 0, compute, lambda: default)


def _in_loop(compute, default):
    return tf.while_loop(
        lambda i, _: i < 1, lambda i, _: (i + 1, compute()), (0, default)
    )[1]


@pytest.mark.parametrize(
    ("place", "compiled"),
    [
        (_in_function, False),
        (_in_branch, False),
        (_in_loop, False),
        (_in_function, True),
        (_in_loop, True),
    ],
)
def test_a_second_overflow_of_a_tape_skips_the_step_made_of_it(place, compiled):
    variables = [tf.Variable(X[0]), tf.Variable(X[1])]
    optimizers = [keras.optimizers.SGD(0.1) for _ in variables]
    for variable, optimizer in zip(variables, optimizers, strict=True):
        optimizer.build([variable])

    @tf.function(jit_compile=compiled)
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            losses = [tf.reduce_sum(v * x) for v in variables]
        slopes = [
            tape.gradient(losses[0], variables[0]),
            place(lambda: tape.gradient(losses[1], variables[1]), tf.zeros_like(x)),
        ]
        for slope, variable, optimizer in zip(
            slopes, variables, optimizers, strict=True
        ):
            optimizer.apply([slope + 0.1 * variable], [variable])

    with scaled_by(DynamicLossScale(initial=2.0**10)) as loss_scale:
        for x, taken in ((X[0], 1), (BAD[0], 1), (X[0], 2)):
            step(tf.constant(x))
            assert [int(optimizer.iterations) for optimizer in optimizers] == [
                taken
            ] * 2
        assert figures(loss_scale) == (2.0**9, 1, 1)
