"""Loss scales of a training in progress, while weights of others are restored."""

import keras
import pytest
import tensorflow as tf

import tf_amp
from keras_callbacks.loss_scale_monitor import ScaleReadings
from tests.checkpoint_ways import BAD, Model, X, Y, compiled
from tests.checkpointing import anew, dynamic, fit, training
from tests.scaling import figures
from tf_amp import DynamicLossScale, StatisticalLossScale
from tf_amp.errors import CheckpointMismatchError
from tf_amp.rewriting import host
from tf_amp.rewriting.host import PlanRecord
from tf_amp.training import checkpoint_record


def stored(path, *inputs, loss_scale=None):
    """Write a model that was trained with a loss scale, or without any."""
    model = compiled(keras)
    if loss_scale is None:
        fit(model, *inputs)
        model.save(path)
    else:
        with training(loss_scale):
            fit(model, *inputs)
            model.save(path)
    return path


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory):
    """Return the path of a model that overflowed once and took one step."""
    path = tmp_path_factory.mktemp("overflowed") / "m.keras"
    return stored(path, BAD, X, loss_scale=dynamic())


@pytest.mark.parametrize("with_record", [False, True])
def test_a_model_loaded_beside_a_training_leaves_its_scale_alone(with_record, tmp_path):
    of_teacher = dynamic(2.0**5) if with_record else None
    teacher = stored(tmp_path / "teacher.keras", X, loss_scale=of_teacher)
    assert checkpoint_record.path_beside(teacher).exists() == with_record
    plan = {"student": PlanRecord("step", "5", 3)}
    with training(dynamic()) as loss_scale:
        host.current().memory.resume(plan)
        student = compiled(keras)
        fit(student, BAD, X)
        kept = keras.models.load_model(teacher)
        assert figures(loss_scale) == (2.0**9, 1, 1)
        assert plan.items() <= host.current().memory.known().items()
        fit(student)
        assert figures(loss_scale) == (2.0**9, 2, 1)
        student.save(tmp_path / "student.keras")
        assert kept.built
    (record,) = checkpoint_record.read_beside(tmp_path / "student.keras")
    assert [saved.values["scale"] for saved in record.loss_scales] == [2.0**9]


def test_each_of_two_models_goes_on_as_it_was_saved(overflowed, tmp_path):
    teacher = stored(tmp_path / "teacher.keras", X, X, loss_scale=dynamic(2.0**5))
    with training(dynamic()) as loss_scale:
        model = keras.models.load_model(overflowed)
        other = keras.models.load_model(teacher)
        fit(model)
        assert figures(loss_scale) == (2.0**9, 2, 1)
        # The other one begins to train; the first was there before.
        fit(other)
        assert figures(loss_scale) == (2.0**5, 3, 0)
        fit(model)
        assert figures(loss_scale) == (2.0**5, 4, 0)


def test_a_training_from_scratch_has_nothing_of_a_model_that_was_loaded(tmp_path):
    teacher = stored(tmp_path / "t.keras", X, loss_scale=StatisticalLossScale())
    with training(dynamic()) as loss_scale:
        kept = keras.models.load_model(teacher)
        fit(compiled(keras))
        assert figures(loss_scale) == (2.0**10, 1, 0)
        assert kept.built


def test_what_was_skipped_in_the_training_of_another_is_not_counted(overflowed):
    with training(dynamic()):
        kept, student = keras.models.load_model(overflowed), compiled(keras)
        readings = ScaleReadings(student)
        fit(student, BAD, X)
        assert readings.read().skipped_here == 1
        assert kept.built


def test_weights_bring_their_state_back_once_they_train(tmp_path):
    with training(dynamic()) as loss_scale:
        model = compiled(keras)
        fit(model, BAD, X)
        model.save(tmp_path / "best.keras")
        model.save_weights(tmp_path / "best.weights.h5")
        fit(model, BAD)
        loaded = keras.models.load_model(tmp_path / "best.keras")
        loaded.evaluate(X, Y, verbose=0)
        assert figures(loss_scale) == (2.0**8, 0, 2)
        fit(loaded)
        assert figures(loss_scale) == (2.0**9, 2, 1)
        # Read back into the model that trains, at once.
        model.load_weights(tmp_path / "best.weights.h5")
        assert figures(loss_scale) == (2.0**9, 1, 1)


def test_weights_without_a_record_let_what_was_resumed_stay(overflowed, tmp_path):
    plain = compiled(keras)
    fit(plain)
    plain.save_weights(tmp_path / "plain.weights.h5")
    with training(dynamic()) as loss_scale:
        model = keras.models.load_model(overflowed)
        model.load_weights(tmp_path / "plain.weights.h5")
        fit(model)
        assert figures(loss_scale) == (2.0**9, 2, 1)


def test_the_checkpoint_of_another_optimizer_leaves_the_scale_alone(tmp_path):
    def restored(x, path):
        model = Model(keras.optimizers.SGD(0.1, momentum=0.9))
        model.step(x)
        return tf.train.Checkpoint(optimizer=model.optimizer), path

    with training(dynamic(2.0**5)):
        checkpoint, path = restored(X, str(tmp_path / "c"))
        path = checkpoint.save(path)
    with training(dynamic()) as loss_scale:
        model = Model(keras.optimizers.SGD(0.1, momentum=0.9))
        model.step(BAD)
        other = Model(keras.optimizers.SGD(0.1, momentum=0.9))
        tf.train.Checkpoint(optimizer=other.optimizer).restore(path)
        assert figures(loss_scale) == (2.0**9, 0, 1)
        tf.train.Checkpoint(optimizer=model.optimizer).restore(path)
        assert figures(loss_scale) == (2.0**5, 1, 0)


def test_weights_that_are_made_after_they_were_restored_are_known(tmp_path):
    class Later(tf.Module):
        def __init__(self):
            super().__init__()
            self.optimizer = keras.optimizers.SGD(0.1)
            self.inner = None

        def step(self, x):
            self.inner = self.inner or Model(self.optimizer)
            self.inner.step(x)

    with training(dynamic()):
        made = Later()
        made.step(BAD)
        path = tf.train.Checkpoint(made=made).save(str(tmp_path / "c"))
    with training(dynamic()) as loss_scale:
        first = Model(keras.optimizers.SGD(0.1))
        first.step(X)
        later = Later()
        tf.train.Checkpoint(made=later).restore(path)
        assert figures(loss_scale) == (2.0**10, 1, 0)
        later.step(X)
        assert figures(loss_scale) == (2.0**9, 1, 1)


def step_under(loss_scale, model, x):
    """Take a step of a function that is traced for it alone."""
    step = tf.function(lambda: model.step.python_function(x))
    with tf_amp.mixed_precision_scope(loss_scale=loss_scale, opt_level="O0"):
        step()


@pytest.fixture
def saved(tmp_path, disabled_afterwards):
    """Return the path of what was trained with 2^20 and overflowed once."""
    with anew():
        model = Model(keras.optimizers.SGD(0.1))
        step_under(DynamicLossScale(initial=2.0**20), model, BAD)
        with tf_amp.mixed_precision_scope(opt_level="O0"):
            saver = tf.train.Checkpoint(weight=model.weight, o=model.optimizer)
            return saver.save(str(tmp_path / "c"))


def restored_under(path, *loss_scales):
    """Train a model under loss scales, then restore; return their figures before."""
    model = Model(keras.optimizers.SGD(0.1))
    restored = tf.train.Checkpoint(weight=model.weight, o=model.optimizer)
    for loss_scale in loss_scales:
        step_under(loss_scale, model, X)
    before = [figures(loss_scale) for loss_scale in loss_scales]
    with tf_amp.mixed_precision_scope(opt_level="O0"):
        restored.restore(path)
    return before


@pytest.mark.parametrize(
    "other", [DynamicLossScale(initial=2.0**10), StatisticalLossScale(initial=2.0**10)]
)
def test_of_several_loss_scales_the_equal_one_goes_on(saved, other):
    equal = DynamicLossScale(initial=2.0**20)
    with anew():
        before, _ = restored_under(saved, other, equal)
        assert figures(other) == before
        assert figures(equal) == (2.0**19, 0, 1)


def test_where_only_the_state_of_another_class_was_saved_the_one_in_use_refuses(saved):
    refused = pytest.raises(CheckpointMismatchError, match=r"Dynamic.*Statistical")
    with anew(), refused:
        restored_under(saved, StatisticalLossScale())


def test_an_equal_loss_scale_takes_its_state_after_one_of_its_class_did(saved):
    other, equal = DynamicLossScale(initial=2.0**10), DynamicLossScale(initial=2.0**20)
    with anew():
        model = Model(keras.optimizers.SGD(0.1))
        restored = tf.train.Checkpoint(weight=model.weight, o=model.optimizer)
        with tf_amp.mixed_precision_scope(opt_level="O0"):
            restored.restore(saved)
        for loss_scale in (other, equal):
            step_under(loss_scale, model, X)
            assert figures(loss_scale) == (2.0**19, 1, 1)
