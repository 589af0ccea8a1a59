"""SavedModels are verified and measured by their signatures, on data or without."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

from tests import planted
from tf_amp.commands import cli
from tf_amp.tools.ranges import ranges_of_saved_model
from tf_amp.tools.verify.verifying import verify_saved_model

_LOW = {"dtype": "bfloat16", "opt_level": "O2"}


class _Words(tf.Module):
    """Looks words up in a table, then multiplies what it finds."""

    def __init__(self):
        super().__init__()
        values = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2], tf.string)
        self.table = tf.lookup.StaticHashTable(values, 0)
        shape = (3, planted.WIDTH)
        self.vectors = tf.Variable(tf.random.stateless_normal(shape, (1, 2)))
        self.kernel = tf.Variable(tf.ones((planted.WIDTH, 4)))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="words")])
    def serve(self, words):
        found = tf.gather(self.vectors, self.table.lookup(words))
        return {"sums": tf.matmul(found, self.kernel, name="product")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "model"
    module = _Words()
    signatures = {"serve": module.serve, "again": module.serve}
    tf.saved_model.save(module, str(path), signatures=signatures)
    return path


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, words=np.array([["a", "?", "b"], ["b", "b", "a"]]))
    return path


def test_signatures_that_are_alike_are_verified_as_one(folder, data):
    for file in (data, None):
        found = verify_saved_model(folder, _LOW, file=file)
        assert [set(each.graph.split(", ")) for each in found] == [{"serve", "again"}]
        assert found[0].ok
        assert [c.name for c in found[0].checks] == ["sums"]
        assert found[0].low_operations
    assert "synthetic data for" in found[0].data


def test_ranges_are_those_of_all_batches(folder, data):
    seen = ranges_of_saved_model(folder, data, "serve")
    product = next(t for t in seen.tensors if t.node.endswith("product"))
    assert (seen.batches, product.batches, product.values) == (2, 2, 2 * 3 * 4)


class _Halves(tf.Module):
    """Multiplies inputs separately; hundreds are more than float16 holds in either."""

    @tf.function(input_signature=[tf.TensorSpec([64, 64], name=n) for n in "xz"])
    def serve(self, x, z):
        kernel = 100.0 * tf.ones((64, 64))
        first = tf.matmul(x, kernel, name="first") * 1e-5
        return {"sum": first + tf.matmul(z, kernel, name="second") * 1e-5}


_PATTERNS = {"^first$", "^second$"}


def _bisected(folder, data, *options):
    """Run the command in a folder of its own and return what the list then holds."""
    arguments = ["verify", str(folder), "--data", str(data), "--bisect", *options]
    cli.main([*arguments, "--dtype", "float16", "--opt-level", "O2"])
    lines = pathlib.Path("tf-amp-exclude.txt").read_text().splitlines()
    return {line for line in lines if not line.startswith("#")}


@pytest.fixture
def halves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = _Halves()
    tf.saved_model.save(module, "model", signatures=module.serve)
    ones = np.ones((64, 64), np.float32)
    np.savez("first.npz", x=100 * ones, z=ones)
    np.savez("second.npz", x=ones, z=100 * ones)
    both = np.stack([100 * ones, ones])
    np.savez("both.npz", x=both, z=both[::-1])
    return tmp_path


def test_the_culprits_of_all_batches_are_found(halves):
    assert _PATTERNS <= _bisected(halves / "model", halves / "both.npz")


def test_a_list_that_is_in_force_is_added_to_and_another_is_replaced(
    halves, monkeypatch
):
    model, listed = halves / "model", "@tf-amp-exclude.txt"
    assert "^first$" not in _bisected(model, halves / "second.npz")
    first = _bisected(model, halves / "first.npz")
    assert "^first$" in first and "^second$" not in first
    kept = pathlib.Path("tf-amp-exclude.txt").read_text()
    by_option = _bisected(model, halves / "second.npz", "--exclude", listed)
    pathlib.Path("tf-amp-exclude.txt").write_text(kept)
    monkeypatch.setenv("TF_AMP_EXCLUDE", listed)
    by_variable = _bisected(model, halves / "second.npz")
    assert by_option >= {*first, "^second$"} and by_variable == by_option
