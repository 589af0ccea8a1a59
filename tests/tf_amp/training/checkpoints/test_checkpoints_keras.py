"""Loss scales beside the files that Keras writes, and files that are exported."""

import shutil

import h5py
import keras
import pytest

from tests.checkpoint_ways import BAD, compiled
from tests.checkpointing import dynamic, fit, training
from tests.scaling import figures
from tf_amp.training import checkpoint_record


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return the folder of a model after an overflow and three steps."""
    folder = tmp_path_factory.mktemp("stored")
    with training(dynamic()):
        model = compiled(keras)
        fit(model, BAD)
        fit(model, epochs=3)
        model.save(folder / "m.keras")
        model.save_weights(folder / "m.weights.h5")
    return folder


def test_the_files_are_what_keras_writes(stored):
    assert not any(b"tf_amp" in p.read_bytes() for p in stored.glob("m.*[5s]"))
    dtypes = set()

    def note(_, item):
        if isinstance(item, h5py.Dataset):
            dtypes.add(str(item.dtype))

    with h5py.File(stored / "m.weights.h5") as file:
        file.visititems(note)
    assert dtypes <= {"float32", "int32", "int64"}


def test_weights_that_were_never_trained_say_nothing(tmp_path, caplog):
    compiled(keras, is_built=False).save_weights(str(tmp_path / "m.weights.h5"))
    with training(dynamic()):
        model = compiled(keras, is_built=False)
        model.load_weights(str(tmp_path / "m.weights.h5"))
        fit(model)
    assert "holds no state" not in caplog.text


def test_a_state_of_other_weights_is_not_used(stored, tmp_path, caplog):
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "m.keras"
    record = checkpoint_record.path_beside(path).read_bytes()
    model = keras.models.load_model(path)
    model.set_weights([2.0 * weight for weight in model.get_weights()])
    model.save(path)
    checkpoint_record.path_beside(path).write_bytes(record)
    with training(dynamic()):
        fit(keras.models.load_model(path))
    assert caplog.text.count("belongs to other weights") == 1


def test_a_backup_that_was_cut_off_goes_on_from_the_one_before(tmp_path):
    def backup():
        return keras.callbacks.BackupAndRestore(
            tmp_path, double_checkpoint=True, delete_checkpoint=False
        )

    def killed(epoch, logs):
        # As if killed while the weights of the next epoch were written.
        if epoch == 3:
            weights = tmp_path / "latest.weights.h5"
            weights.write_bytes(weights.read_bytes()[:100])
            raise KeyboardInterrupt

    with training(dynamic()) as loss_scale:
        model = compiled(keras)
        expected = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: expected.append(figures(loss_scale))
        )
        with pytest.raises(KeyboardInterrupt):
            stop = keras.callbacks.LambdaCallback(on_epoch_end=killed)
            fit(model, epochs=6, callbacks=[note, backup(), stop])
    with training(dynamic()) as loss_scale:
        begun = []
        note = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: begun.append(figures(loss_scale))
        )
        fit(compiled(keras, is_built=False), epochs=6, callbacks=[backup(), note])
    # The epoch whose backup was cut off is trained once more.
    assert begun[0] == expected[3] == (2.0**10, 4, 0)


def test_side_files_follow_those_that_callbacks_replace_and_delete(tmp_path):
    best, kept = tmp_path / "best.keras", tmp_path / "backup"
    callbacks = [
        keras.callbacks.ModelCheckpoint(best),
        keras.callbacks.BackupAndRestore(kept),
    ]
    with training(dynamic()) as loss_scale:
        fit(compiled(keras), callbacks=callbacks)
        latest = figures(loss_scale)
        record = checkpoint_record.read_beside(best)[0].loss_scales[0].values
        assert (record["scale"], record["good_steps"]) == latest[:2]
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["best.keras", "best.keras.tf_amp.json"]


def test_a_model_without_a_state_leaves_no_file_beside(stored, tmp_path):
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "m.keras"
    compiled(keras).save(path)
    assert checkpoint_record.path_beside(path).exists()
    with training(dynamic()):
        compiled(keras).save(path)
    assert not checkpoint_record.path_beside(path).exists()
