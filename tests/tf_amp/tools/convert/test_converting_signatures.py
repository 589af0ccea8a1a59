"""Signatures that take and give 16 bits, where the user does not keep their dtypes."""

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests import stored_models
from tests.stored_models import PLANNED
from tests.tf_amp.tools.convert.test_converting import (
    DEPTH,
    EPSILON,
    graph_of,
    relative_error,
)
from tf_amp.commands import cli
from tf_amp.errors import AlreadyMixedError


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    for kind in ("functional", "session"):
        inputs = stored_models.KINDS[kind](base / kind)
        arrays = {name: np.asarray(value) for name, value in inputs.items()}
        np.savez(base / f"{kind}.npz", **arrays)
        report = tf_amp.convert(
            base / kind, base / f"{kind}-low", keep_io=False, verify=True, **PLANNED
        )
        assert report.is_verified and report.verifications
        assert "serving_default.x" in report.low_io
        assert "in bfloat16: " in str(report)
    return base


@pytest.mark.parametrize("kind", ["functional", "session"])
def test_both_loaders_take_and_give_16_bits(models, kind):
    inputs = dict(np.load(models / f"{kind}.npz", allow_pickle=True))
    expected = called(models / kind, inputs, tf.float32)
    for call in (called, run_in_session):
        found = call(models / f"{kind}-low", inputs, tf.bfloat16)
        for name, value in expected.items():
            assert found[name].dtype == tf.bfloat16.as_numpy_dtype
            error = relative_error(value, found[name].astype("float32"))
            assert 0 < error < EPSILON * DEPTH


def called(folder, inputs, dtype):
    model = tf.saved_model.load(str(folder))
    given = {name: tf.constant(v) for name, v in in_type(inputs, dtype).items()}
    found = model.signatures["serving_default"](**given)
    return {name: value.numpy() for name, value in found.items()}


def run_in_session(folder, inputs, dtype):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        signature = meta_graph.signature_def["serving_default"]
        values = in_type(inputs, dtype).items()
        fed = {signature.inputs[name].name: value for name, value in values}
        wanted = {name: info.name for name, info in signature.outputs.items()}
        return session.run(wanted, fed)


def in_type(inputs, dtype):
    numbers = {n: v for n, v in inputs.items() if v.dtype == np.float32}
    return {**inputs, **{n: v.astype(dtype.as_numpy_dtype) for n, v in numbers.items()}}


def test_functions_of_the_model_itself_keep_their_dtypes(models):
    inputs = np.load(models / "functional.npz")
    model = tf.saved_model.load(str(models / "functional-low"))
    assert model.serve(inputs["x"]).dtype == tf.float32


def test_float32_signatures_come_back(models, tmp_path):
    tf_amp.convert(models / "session-low", tmp_path / "back", to="float32")
    assert graph_of(tmp_path / "back") == graph_of(models / "session")
    with pytest.raises(AlreadyMixedError, match="2 inputs and outputs are in bfloat16"):
        tf_amp.convert(models / "session-low", tmp_path / "again")


def test_where_nothing_goes_low_signatures_do_if_that_is_asked_for(
    models, tmp_path, capsys
):
    given, out = str(models / "functional"), tmp_path / "out"
    assert cli.main(["convert", given, str(out), "--no-keep-io", "--opt-level=O0"]) == 0
    # A line is folded where it is too long.
    said = " ".join(capsys.readouterr().out.split())
    assert "computes in float32 as before (O0" in said
    assert "; signatures take and give bfloat16" in said
    info = graph_of(out).signature_def["serving_default"].inputs["x"]
    assert info.dtype == tf.bfloat16.as_datatype_enum
    with pytest.raises(AlreadyMixedError, match="4 inputs and outputs are in bfloat16"):
        tf_amp.convert(out, tmp_path / "again")
