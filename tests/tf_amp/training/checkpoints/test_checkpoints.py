"""Loss scales in checkpoints of TensorFlow's own formats."""

import keras
import pytest
import tensorflow as tf

from tests.checkpoint_ways import BAD, Model, X
from tests.checkpointing import dynamic, training
from tests.scaling import figures
from tf_amp import (
    LossScale,
    NoOpLossScale,
    StaticLossScale,
    StatisticalLossScale,
    loss_scale_state,
)
from tf_amp.rewriting import host
from tf_amp.rewriting.host import PlanRecord
from tf_amp.training import checkpoints


def optimized():
    return Model(keras.optimizers.SGD(0.1, momentum=0.9))


def checkpoint_of(model):
    return tf.train.Checkpoint(weight=model.weight, optimizer=model.optimizer)


def resumed(path):
    """Return the figures of a training that restores and takes a step."""
    with training(dynamic()) as loss_scale:
        model = optimized()
        checkpoint_of(model).restore(path)
        model.step(X)
        return figures(loss_scale)


def trained(loss_scale, folder):
    """Take a finite step, one that overflows and two finite ones; save."""
    with training(loss_scale):
        model = optimized()
        for x in (X, BAD, X, X):
            model.step(x)
        return checkpoint_of(model).save(str(folder / "c")), figures(loss_scale)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return what `trained` does, of one training for all tests."""
    return trained(dynamic(), tmp_path_factory.mktemp("saved"))


def test_a_state_in_use_is_set_back(tmp_path):
    with training(dynamic()) as loss_scale:
        model = optimized()
        manager = tf.train.CheckpointManager(checkpoint_of(model), str(tmp_path), 2)
        model.step(X)
        path = manager.save()
        model.step(BAD)
        assert figures(loss_scale) == (2.0**9, 0, 1)
        manager.checkpoint.restore(path).assert_consumed()
        assert figures(loss_scale) == (2.0**10, 1, 0)


def test_plans_go_with_a_checkpoint(tmp_path):
    plan = {"key": PlanRecord("step", "5", 3)}
    with training(dynamic()):
        host.current().memory.resume(plan)
        path = checkpoint_of(optimized()).save(str(tmp_path / "c"))
    with training(dynamic()):
        checkpoint_of(optimized()).restore(path)
        assert host.current().memory.known() == plan


def test_every_loss_scale_gets_its_own_state(tmp_path):
    class Halving(LossScale):
        def initial_state(self):
            return {"scale": 64.0, "halved": 0}

        def adjust(self, state, seen):
            halved = {"scale": state["scale"] / 2, "halved": state["halved"] + 1}
            return {} if seen.finite else halved

    for make in (
        dynamic,
        lambda: StaticLossScale(8.0),
        StatisticalLossScale,
        Halving,
    ):
        path, expected = trained(make(), tmp_path)
        with training(make()) as loss_scale:
            model = optimized()
            checkpoint_of(model).restore(path)
            model.step(X)
            after = loss_scale_state(loss_scale)
            assert after.skipped_steps == expected[2] == 1
            assert after.good_steps == expected[1] + 1


def test_the_state_of_another_loss_scale_is_refused(saved):
    path, _ = saved
    with training(StatisticalLossScale()):
        model = optimized()
        checkpoint_of(model).restore(path)
        # AutoGraph raises what went wrong in a trace as an error of its own.
        with pytest.raises(Exception, match=r"DynamicLossScale.*StatisticalLossScale"):
            model.step(X)


def test_a_damaged_state_is_told_of_and_the_scale_starts_fresh(
    tmp_path, caplog, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "text_from_records", lambda records: "{")
        path, _ = trained(dynamic(), tmp_path)
    assert resumed(path) == (2.0**10, 1, 0)
    assert "cannot be read" in caplog.text


def test_weights_alone_bring_no_state_along(saved, caplog):
    path, _ = saved
    with training(dynamic()) as loss_scale:
        model = optimized()
        tf.train.Checkpoint(weight=model.weight).restore(path).expect_partial()
        model.step(X)
        assert figures(loss_scale) == (2.0**10, 1, 0)
    assert "holds no state" not in caplog.text


def test_weights_updated_by_hand_take_the_state_along(tmp_path):
    with training(dynamic()):
        model = Model()
        for x in (BAD, X):
            model.step(x)
        path = tf.train.Checkpoint(weight=model.weight).save(str(tmp_path / "c"))
    with training(dynamic()) as loss_scale:
        model = Model()
        tf.train.Checkpoint(weight=model.weight).restore(path).assert_consumed()
        model.step(X)
        assert figures(loss_scale) == (2.0**9, 2, 1)


def test_what_was_restored_is_saved_again_without_a_step(saved, tmp_path):
    path, expected = saved
    with training(dynamic()):
        model = optimized()
        checkpoint_of(model).restore(path)
        path = checkpoint_of(model).save(str(tmp_path / "again"))
    assert resumed(path) == (expected[0], expected[1] + 1, expected[2])


def test_without_scaling_checkpoints_hold_nothing_more(tmp_path):
    path, _ = trained(NoOpLossScale(), tmp_path)
    assert not tf.train.load_checkpoint(path).has_tensor(checkpoints.KEY)


def test_a_checkpoint_in_a_session_holds_the_state_of_each_save(tmp_path):
    def graph_of(loss_scale):
        x = tf.compat.v1.placeholder(tf.float32, (None, 4))
        weight = tf.compat.v1.get_variable("w", (4, 1), use_resource=True)
        optimizer = tf.compat.v1.train.AdamOptimizer(0.1)
        train = optimizer.minimize(tf.reduce_mean((x @ weight) ** 2))
        return x, train, tf.train.Checkpoint(weight=weight, optimizer=optimizer)

    paths = []
    with training(dynamic()) as loss_scale, tf.Graph().as_default():
        x, train, saved = graph_of(loss_scale)
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            saved.save_counter.initializer.run()
            for value in (X, BAD):
                session.run(train, {x: value})
                paths.append(saved.save(str(tmp_path / "c")))
    for path, expected in zip(paths, ((2.0**10, 1, 0), (2.0**9, 0, 1)), strict=True):
        with training(dynamic()) as loss_scale, tf.Graph().as_default():
            x, train, saved = graph_of(loss_scale)
            with tf.compat.v1.Session() as session:
                saved.restore(path).initialize_or_restore(session)
                assert figures(loss_scale) == expected
