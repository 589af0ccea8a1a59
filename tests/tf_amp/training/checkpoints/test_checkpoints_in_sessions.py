"""Loss scales in checkpoints of `tf.compat.v1.train.Saver`."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

from tests.checkpoint_ways import BAD, X
from tests.checkpointing import dynamic, training
from tests.scaling import figures
from tf_amp import StaticLossScale, StatisticalLossScale
from tf_amp.errors import CheckpointMismatchError
from tf_amp.rewriting import host
from tf_amp.rewriting.host import PlanRecord
from tf_amp.training import checkpoint_record

v1 = tf.compat.v1


class Program:
    """A graph with a step, a Saver of all its variables, and a Session."""

    def __init__(self, saver=v1.train.Saver) -> None:
        self.x = v1.placeholder(tf.float32, (None, 4))
        weight = v1.get_variable("w", (4, 1), use_resource=True)
        steps = v1.train.get_or_create_global_step()
        loss = tf.reduce_mean((self.x @ weight) ** 2)
        with v1.name_scope("somewhere"):
            optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
            self.train = optimizer.minimize(loss, global_step=steps)
        self.initialize = v1.global_variables_initializer()
        self.saver = saver()
        self.session = v1.Session()

    def run(self, *values):
        for value in values:
            self.session.run(self.train, {self.x: value})


@contextlib.contextmanager
def program(loss_scale, **arguments):
    with training(loss_scale), tf.Graph().as_default():
        made = Program(**arguments)
        with made.session:
            yield made


def saved(folder, loss_scale, **arguments):
    with program(loss_scale, **arguments) as made:
        made.session.run(made.initialize)
        made.run(X, BAD, X, X)
        return made.saver.save(made.session, str(folder / "c"), global_step=3)


def saved_before(folder):
    """Return a checkpoint that was made without loss scaling."""
    with tf.Graph().as_default():
        made = Program()
        with made.session:
            made.session.run(made.initialize)
            return made.saver.save(made.session, str(folder / "before"))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a checkpoint of which there is one for all tests."""
    return saved(tmp_path_factory.mktemp("saved"), dynamic())


SAVERS = {
    "sharded": lambda: v1.train.Saver(sharded=True),
    "list": lambda: v1.train.Saver(v1.global_variables()),
    "deferred": lambda: v1.train.Saver(defer_build=True),
}


@pytest.mark.parametrize("name", SAVERS)
def test_a_checkpoint_of_before_restores_and_the_scale_starts_fresh(
    name, tmp_path, caplog
):
    path = saved_before(tmp_path)
    loss_scale = dynamic()
    with program(loss_scale, saver=SAVERS[name]) as made:
        if name == "deferred":
            made.saver.build()
        made.session.run(made.initialize)
        made.run(BAD)
        made.session.graph.finalize()
        made.saver.restore(made.session, path)
        assert figures(loss_scale) == (2.0**10, 0, 0)
        made.run(X)
        assert figures(loss_scale) == (2.0**10, 1, 0)
    assert caplog.text.count("holds no state of a loss scale") == 1


def test_with_a_scale_that_nothing_can_be_scaled_by_it_starts_fresh(tmp_path, caplog):
    scales, paths = (0.0, -1.0, float("nan"), float("inf")), []
    with program(dynamic()) as made:
        made.session.run(made.initialize)
        made.run(X)
        (floats,) = (v for v in v1.global_variables() if v.op.name.endswith("/floats"))
        for number, scale in enumerate(scales):
            floats.load([scale], made.session)
            paths.append(made.saver.save(made.session, str(tmp_path / f"c{number}")))
    loss_scale = dynamic()
    with program(loss_scale) as made:
        for scale, path in zip(scales, paths, strict=True):
            made.saver.restore(made.session, path)
            assert figures(loss_scale) == (2.0**10, 0, 0)
            made.run(X)
            assert figures(loss_scale) == (2.0**10, 1, 0)
            assert f"is {scale:g}" in caplog.text


def test_a_variable_that_is_missing_otherwise_is_an_error_still(tmp_path):
    path = saved_before(tmp_path)
    with training(dynamic()), tf.Graph().as_default():
        v1.get_variable("another", ())
        made = Program()
        with made.session, pytest.raises(tf.errors.NotFoundError, match="another"):
            made.saver.restore(made.session, path)


def test_the_state_of_another_loss_scale_is_refused(path):
    with program(StatisticalLossScale()) as made:
        with pytest.raises(
            CheckpointMismatchError, match=r"DynamicLossScale.*Statistical"
        ):
            made.saver.restore(made.session, path)


def test_a_number_chosen_by_the_program_goes_before_the_saved_one(tmp_path):
    path = saved(tmp_path, StaticLossScale(64.0))
    loss_scale = StaticLossScale(128.0)
    with program(loss_scale) as made:
        made.saver.restore(made.session, path)
        assert figures(loss_scale) == (128.0, 2, 1)


def test_an_object_based_checkpoint_of_before_restores_by_names(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", (4, 1), use_resource=True)
        session.run(v1.global_variables_initializer())
        expected = session.run(weight)
        saver = tf.train.Checkpoint(w=weight)
        saver.save_counter.initializer.run()
        path = saver.save(str(tmp_path / "o"))
    with training(dynamic()), tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", (4, 1), use_resource=True)
        x = v1.placeholder(tf.float32, (None, 4))
        tf.gradients(tf.reduce_sum(x @ weight), weight)
        v1.train.Saver().restore(session, path)
        assert np.array_equal(session.run(weight), expected)


def test_initializers_of_the_program_may_leave_the_state_out(tmp_path):
    with training(StaticLossScale(8.0)), tf.Graph().as_default():
        x = v1.placeholder(tf.float32, (None, 4))
        weight = v1.get_variable("w", (4, 1), use_resource=True)
        count = v1.train.get_or_create_global_step()
        scaffold = v1.train.Scaffold(
            init_op=v1.variables_initializer([weight, count]),
        )
        train = v1.train.GradientDescentOptimizer(0.1).minimize(
            tf.reduce_mean((x @ weight) ** 2), count
        )
        with v1.train.MonitoredTrainingSession(
            scaffold=scaffold, checkpoint_dir=str(tmp_path), save_checkpoint_steps=2
        ) as session:
            for _ in range(3):
                session.run(train, {x: X})
    assert v1.train.latest_checkpoint(str(tmp_path)).endswith("-3")


def test_plans_lie_beside_the_checkpoint_and_go_with_it(tmp_path):
    plan = {"key": PlanRecord("step", "5", 3)}
    with program(dynamic(), saver=lambda: v1.train.Saver(max_to_keep=1)) as made:
        host.current().memory.resume(plan)
        made.session.run(made.initialize)
        first, second = (
            made.saver.save(made.session, str(tmp_path / "c"), global_step=i)
            for i in range(2)
        )
    assert not checkpoint_record.path_beside(first).exists()
    with program(dynamic()) as made:
        made.saver.restore(made.session, second)
        assert host.current().memory.known() == plan
