"""Every signature of a model is measured, observed and verified, or reported."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests.stored_models import PLANNED
from tf_amp.config.ranges import Ranges
from tf_amp.run.batches import signatures_of
from tf_amp.tools.ranges import ranges_of_saved_model

_HALF = {**PLANNED, "dtype": "float16"}
_NAMES = ("first", "second")


class _Products(tf.Module):
    """Two signatures of inputs x, and one of input z; a product in each."""

    def __init__(self, large):
        super().__init__()
        kernel = tf.eye(64)
        sizes = {name: 1e5 if name == large else 1.0 for name in _NAMES}
        spec = [tf.TensorSpec((None, 64), name="x")]
        self.functions = [
            tf.function(self._product(size, kernel), spec) for size in sizes.values()
        ]
        other = [tf.TensorSpec((None, 64), name="z")]
        self.third = tf.function(lambda z: {"y": tf.matmul(z, kernel)}, other)

    def _product(self, size, kernel):
        return lambda x: {"y": tf.matmul(x, size * kernel, name="product")}


def stored(folder, large):
    module = _Products(large)
    signatures = dict(zip(_NAMES, module.functions, strict=True))
    tf.saved_model.save(module, str(folder / large), signatures=signatures)
    both = {**signatures, "third": module.third}
    tf.saved_model.save(module, str(folder / f"{large}-3"), signatures=both)
    np.savez(folder / "data.npz", x=np.ones((8, 64), np.float32))
    return folder


@pytest.mark.parametrize("large", _NAMES)
def test_what_leaves_the_range_in_any_signature_is_told(tmp_path, large):
    base = stored(tmp_path, large)
    found = ranges_of_saved_model(base / large, base / "data.npz")
    assert sorted(t.largest for t in found.tensors if t.op == "MatMul") == [1.0, 1e5]
    found.save(base / "ranges.json")
    assert "product" in Ranges.load(base / "ranges.json").unsafe("float16")


def test_what_signatures_have_alike_is_one_row(tmp_path):
    base = stored(tmp_path, "none")
    found = ranges_of_saved_model(base / "none", base / "data.npz")
    assert [t.op for t in found.tensors].count("MatMul") == 1


@pytest.mark.parametrize("large", _NAMES)
def test_every_signature_that_the_data_fits_is_observed(tmp_path, large):
    base = stored(tmp_path, large)
    report = tf_amp.convert(
        base / f"{large}-3",
        base / "out",
        calibration=base / "data.npz",
        verify=True,
        **_HALF,
    )
    rows = [
        row for p in report.plans.values() for row in p.filter(op="MatMul").decisions
    ]
    assert sum(row.reason.cause.name == "MEASURED_RANGE" for row in rows) >= 1
    assert report.is_verified and set(report.verifications) == set(_NAMES)
    (unobserved, unverified) = report.warnings
    assert unobserved.startswith("third did not run on the data")
    assert unverified.startswith("third is not verified") and "lacks z" in unverified


def test_signatures_have_one_order_in_every_process(tmp_path):
    module = _Products("first")
    names = [f"{letter}{number}" for letter in "za" for number in range(4)]
    signatures = dict.fromkeys(names, module.third)
    tf.saved_model.save(module, str(tmp_path / "many"), signatures=signatures)
    report = tf_amp.convert(tmp_path / "many", tmp_path / "out", **_HALF)
    assert list(report.signatures) == sorted(names)
    assert list(signatures_of(tmp_path / "out")) == sorted(names)
