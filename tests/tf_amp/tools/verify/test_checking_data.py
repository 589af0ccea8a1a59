"""Data that does not fit is refused, and told what is expected."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tf_amp.errors import UnfitDataError
from tf_amp.run.batches import batches_from_file, checked_batches, described, specs_of

_SPECS = (
    tf.TensorSpec((None, 4), tf.float32, "image"),
    tf.TensorSpec((None,), tf.int64, "label"),
)
_EXPECTED = r"image: float32 \[\?, 4\]; label: int64 \[\?\]"


def _file(tmp_path, **arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return path


def test_the_axis_in_front_holds_batches(tmp_path):
    images = np.arange(24.0).reshape(3, 2, 4)
    path = _file(tmp_path, image=images, label=np.arange(6).reshape(3, 2))
    found = batches_from_file(path, _SPECS)
    assert len(found) == 3
    np.testing.assert_array_equal(found[2]["image"], images[2])
    assert found[0]["image"].dtype == np.float32
    assert found[0]["label"].dtype == np.int64


def test_arrays_of_the_inputs_rank_are_one_batch(tmp_path):
    path = _file(tmp_path, image=np.ones((7, 4)), label=np.ones(7, int))
    assert len(batches_from_file(path, _SPECS)) == 1


_NAN = np.where(np.arange(28).reshape(7, 4) == 9, np.nan, 1.0)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"image": np.ones((7, 4)), "lable": np.ones(7, int)},
         r"lacks label and holds lable.*" + _EXPECTED),
        ({"image": np.ones((7, 5)), "label": np.ones(7, int)},
         r"image is float64 \[7, 5\]; expected is image: float32 \[\?, 4\]"),
        ({"image": np.ones((7, 4)), "label": np.ones(7)},
         r"label is float64 \[7\]; expected is label: int64"),
        ({"image": np.ones((7, 4), int), "label": np.ones(7, int)},
         r"image is int64 \[7, 4\]; expected is image"),
        ({"image": _NAN, "label": np.ones(7, int)},
         r"image holds NaN \(1 of 28 values\)"),
        ({"image": np.ones((2, 7, 4)), "label": np.ones((3, 7), int)},
         "numbers of batches differ: image 2, label 3"),
    ],
    ids=["names", "shape", "float for int", "int for float", "NaN", "batches"],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_told_with_what_is_expected(tmp_path, arrays, told):
    with pytest.raises(UnfitDataError, match=told):
        batches_from_file(_file(tmp_path, **arrays), _SPECS)


@pytest.mark.parametrize("content", [None, b"nothing", "cut off"])
def test_a_file_that_is_no_archive_is_told_with_what_is_expected(tmp_path, content):
    path = _file(tmp_path, image=np.ones((7, 4)), label=np.ones(7, int))
    if content is None:
        path.unlink()
    else:
        cut_off = path.read_bytes()[:200]
        path.write_bytes(cut_off if content == "cut off" else content)
    with pytest.raises(UnfitDataError, match=r"cannot be read.*" + _EXPECTED):
        batches_from_file(path, _SPECS)


def test_batches_of_python_are_named_by_number_where_they_do_not_fit():
    good = (np.ones((1, 4), np.float32), np.ones(1, np.int64))
    named = {"image": good[0], "label": good[1]}
    assert len(checked_batches([good, named], _SPECS)) == 2
    with pytest.raises(UnfitDataError, match=r"batch 2: image is float32 \[1, 3\]"):
        checked_batches([good, (np.ones((1, 3), np.float32), good[1])], _SPECS)
    with pytest.raises(UnfitDataError, match="batch 1 holds 1 arrays for 2 inputs"):
        checked_batches([good[0]], _SPECS)
    with pytest.raises(UnfitDataError, match="holds no batch"):
        checked_batches([], _SPECS)
    with pytest.raises(UnfitDataError, match="holds no batch"):
        tf_amp.ranges(tf.identity, [])


def test_the_inputs_of_a_signature_are_known_by_its_names():
    function = tf.function(lambda *, b, a: a + tf.cast(b, tf.float32))
    concrete = function.get_concrete_function(
        b=tf.TensorSpec([None], tf.int32), a=tf.TensorSpec([None])
    )
    told = [described(spec) for spec in specs_of(concrete)]
    assert told == ["a: float32 [?]", "b: int32 [?]"]
