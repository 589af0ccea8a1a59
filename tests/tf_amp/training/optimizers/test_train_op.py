"""What `apply_gradients` returns serves as without scaling: named, waited for, run."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.scaling import are_equal, figures, scaled_by
from tests.tf_amp.training.optimizers.test_exact_skip_in_graphs import (
    BAD,
    X,
    a_graph,
    batch,
    loss_of,
    of_program,
    reference_variables,
)
from tests.tf_amp.training.optimizers.test_exact_skip_in_graphs import (
    figures as figures_in,
)
from tf_amp import DynamicLossScale, NoOpLossScale

v1 = tf.compat.v1
# Whatever waits for itself shall not stop the tests.
PATIENCE = v1.RunOptions(timeout_in_ms=20_000)


def losses_scaled():
    return DynamicLossScale(initial=2.0**10)


@pytest.mark.parametrize(("references", "scope"), [(False, "part"), (True, "")])
def test_an_update_has_the_name_it_was_given_and_is_in_its_collection(
    references, scope
):
    variables = reference_variables() if references else contextlib.nullcontext()
    names = {}
    with variables:
        for loss_scale in (NoOpLossScale(), losses_scaled()):
            with a_graph(loss_scale), v1.Session() as session:
                x = batch()
                with v1.name_scope(scope or None):
                    step = v1.train.get_or_create_global_step()
                    first = v1.train.AdamOptimizer(0.1)
                    first.minimize(loss_of(x), step, name="train")
                    v1.train.GradientDescentOptimizer(0.1).minimize(loss_of(x))
                collection = v1.get_collection(v1.GraphKeys.TRAIN_OP)
                names[loss_scale.scales] = [operation.name for operation in collection]
                session.run(v1.global_variables_initializer())
                session.run(collection[0].name, {x: X})
                session.run(collection, {x: X})
                assert session.run(step) == 2
    assert names[True] == names[False]


def test_an_update_may_be_given_the_name_of_an_open_scope():
    with a_graph(losses_scaled()), v1.Session() as session:
        x = batch()
        with v1.name_scope("whole") as scope:
            train = v1.train.AdamOptimizer(0.1).minimize(loss_of(x), name=scope)
        assert train.name == "whole"
        session.run(v1.global_variables_initializer())
        session.run("whole", {x: X})
        assert figures_in(session) == (2.0**10, 1, 0)


def test_the_body_of_a_loop_waits_for_its_updates():
    def trained(loss_scale, batches):
        with a_graph(loss_scale), v1.Session() as session:
            x = v1.placeholder(tf.float32, [len(batches), 16, 4])
            weight = v1.get_variable(
                "w", [4, 1], initializer=v1.ones_initializer(), use_resource=True
            )
            optimizer = v1.train.GradientDescentOptimizer(0.1)

            def body(i):
                loss = tf.reduce_mean((x[i] @ weight) ** 2)
                train = optimizer.minimize(loss, var_list=[weight])
                with tf.control_dependencies([train]):
                    return i + 1

            loop = v1.while_loop(lambda i: i < len(batches), body, [tf.constant(0)])
            session.run(v1.global_variables_initializer())
            session.run(loop, {x: np.stack(batches)}, options=PATIENCE)
            return session.run([weight])

    plain = trained(NoOpLossScale(), [X, X])
    assert are_equal(plain, trained(losses_scaled(), [X, X]))
    assert are_equal(plain, trained(losses_scaled(), [X, BAD, X]))


def test_a_branch_of_the_programs_own_returns_an_update():
    with a_graph(losses_scaled()), v1.Session() as session:
        x, optimizer = batch(), v1.train.GradientDescentOptimizer(0.1)
        wanted = v1.placeholder_with_default(True, [])
        train = tf.cond(wanted, lambda: optimizer.minimize(loss_of(x)), tf.no_op)
        session.run(v1.global_variables_initializer())
        before = session.run(of_program())
        session.run(train, {x: X, wanted: False}, options=PATIENCE)
        session.run(train, {x: BAD}, options=PATIENCE)
        assert are_equal(before, session.run(of_program()))
        session.run(train, {x: X}, options=PATIENCE)
        assert not are_equal(before, session.run(of_program()))


def test_a_function_waits_for_an_update_of_an_optimizer_of_before():
    weight, counter = tf.Variable(tf.ones([4, 1])), tf.Variable(0)
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    with scaled_by(losses_scaled()) as loss_scale:

        @tf.function
        def step(x):
            train = optimizer.minimize(
                lambda: tf.reduce_mean((x @ weight) ** 2), var_list=[weight]
            )
            with tf.control_dependencies([tf.group(train)]):
                return counter.assign_add(1)

        for x in (X, BAD, X):
            step(tf.constant(x))
        assert figures(loss_scale) == (2.0**9, 1, 1)
    assert int(counter) == 3


def test_micro_steps_add_up_in_a_graph_without_the_one_that_overflowed():
    def trained(loss_scale, *runs):
        with a_graph(loss_scale):
            x, optimizer = batch(), v1.train.MomentumOptimizer(0.1, 0.9)
            pairs = optimizer.compute_gradients(loss_of(x))
            sums = [
                v1.get_variable(f"sum{i}", v.shape) for i, (_, v) in enumerate(pairs)
            ]
            clear = [v1.assign(total, tf.zeros_like(total)) for total in sums]
            collect = [
                v1.assign_add(total, slope)
                for total, (slope, _) in zip(sums, pairs, strict=True)
            ]
            means = [total / 2 for total in sums]
            train = optimizer.apply_gradients(
                zip(means, [v for _, v in pairs], strict=True)
            )
            begin = v1.global_variables_initializer()
            for batches in runs:
                with v1.Session() as session:
                    session.run(begin)
                    for _ in range(2):
                        session.run(clear)
                        for value in batches:
                            session.run(collect, {x: value})
                        session.run(train)
                    yield session.run([v for _, v in pairs])

    (plain,) = trained(NoOpLossScale(), [X, X])
    runs = [BAD, X, X], [X, BAD, X], [X, X, BAD]
    for found in trained(losses_scaled(), *runs):
        assert are_equal(plain, found)


def test_an_overflow_at_the_minimum_raises_from_the_session_and_changes_nothing():
    with a_graph(DynamicLossScale(initial=1.0, at_minimum="raise")):
        x, step = batch(), v1.train.get_or_create_global_step()
        train = v1.train.AdamOptimizer(0.1).minimize(loss_of(x), global_step=step)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(train, {x: X})
            for _ in range(2):
                before = session.run(of_program())
                with pytest.raises(tf.errors.InvalidArgumentError, match="lowest"):
                    session.run(train, {x: BAD}, options=PATIENCE)
                assert are_equal(before, session.run(of_program()))
                session.run(train, {x: X}, options=PATIENCE)
            assert session.run(step) == 3
