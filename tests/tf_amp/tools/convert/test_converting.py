"""Stored models converted and run where this package is not."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests import stored_models
from tests.processes import ROOT, folder_that_hides, run
from tests.stored_models import PLANNED
from tf_amp.tools.convert import files

EPSILON = 2.0**-8
# Products of these models follow each other by so many.
DEPTH = 8


@dataclasses.dataclass(frozen=True)
class Converted:
    """All kinds, their conversions, and what both returned elsewhere."""

    folder: pathlib.Path
    reports: dict[str, Any]
    results: dict[str, Any]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    kinds = {**stored_models.KINDS, "frozen": stored_models.frozen}
    reports: dict[str, Any] = {}
    names: list[str] = []
    for stem, make in kinds.items():
        ending = ENDINGS.get(stem, "")
        given = base / f"{stem}-given{ending}"
        inputs = {key: np.asarray(value) for key, value in make(given).items()}
        (base / f"{stem}.inputs").write_bytes(pickle.dumps(inputs))
        for weights in ("float32", "low"):
            target = base / f"{stem}-{weights}{ending}"
            report = tf_amp.convert(given, target, weights=weights, **PLANNED)
            reports[target.name] = report
            names.append(target.name)
        names.append(given.name)
    program = ROOT / "tests" / "scripts" / "loads_alone.py"
    hidden = {"PYTHONPATH": str(folder_that_hides())}
    done = run(
        [sys.executable, program, base], env=hidden, cwd=base, given="\n".join(names)
    )
    assert done.code == 0, done.err
    results = pickle.loads((base / "results").read_bytes())
    return Converted(base, reports, results)


KINDS = tuple(stored_models.KINDS)
ENDINGS = {"frozen": ".pb"}


def results_of(converted, name):
    found = converted.results[name]
    return [found] if isinstance(found, dict) else [found[0], found[2]]


def relative_error(expected, actual):
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("weights", ["float32", "low"])
@pytest.mark.parametrize("kind", [*KINDS, "frozen"])
def test_a_converted_model_runs_where_this_package_is_not(converted, kind, weights):
    ending = ENDINGS.get(kind, "")
    expected = results_of(converted, f"{kind}-given{ending}")
    actual = results_of(converted, f"{kind}-{weights}{ending}")
    for one, other in zip(expected, actual, strict=True):
        for key, value in one.items():
            assert other[key].dtype == value.dtype
            error = relative_error(value, other[key])
            assert 0.0 < error < EPSILON * DEPTH, (key, error)


@pytest.mark.parametrize("kind", KINDS)
def test_all_signatures_stay(converted, kind):
    _, expected, _ = converted.results[f"{kind}-given"]
    for weights in ("float32", "low"):
        assert converted.results[f"{kind}-{weights}"][1] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_names_tags_and_objects_stay_and_every_attribute_has_a_value(converted, kind):
    given = graph_of(converted.folder / f"{kind}-given")
    made = graph_of(converted.folder / f"{kind}-float32")
    assert names_in(made) >= names_in(given)
    assert made.meta_info_def.tags == given.meta_info_def.tags
    assert made.object_graph_def == given.object_graph_def
    assert made.signature_def == given.signature_def
    for _, node in nodes_of(made):
        for name, value in node.attr.items():
            assert value.WhichOneof("value"), (node.name, name)


def graph_of(path):
    return files.read(path).meta_graphs[0]


def nodes_of(meta_graph):
    graph_def = meta_graph.graph_def
    yield from (("", node) for node in graph_def.node)
    for function in graph_def.library.function:
        yield from ((function.signature.name, node) for node in function.node_def)


def names_in(meta_graph):
    return {(function, node.name) for function, node in nodes_of(meta_graph)}


@pytest.mark.parametrize("kind", [*KINDS, "frozen"])
def test_a_converted_model_holds_no_marks(converted, kind):
    path = converted.folder / f"{kind}-low{ENDINGS.get(kind, '')}"
    path = path / "saved_model.pb" if path.is_dir() else path
    assert b"_tf_amp" not in path.read_bytes()


@pytest.mark.parametrize("kind", ["functional", "multi_input", "session", "frozen"])
def test_low_weights_halve_the_size(converted, kind):
    ending = ENDINGS.get(kind, "")
    report = converted.reports[f"{kind}-low{ending}"]
    given = converted.folder / f"{kind}-given{ending}"
    weights = files.size_of(given / "variables" if given.is_dir() else given)
    assert report.bytes_before - report.bytes_after > 0.45 * weights
    assert report.bytes_after < 0.56 * report.bytes_before


@pytest.mark.parametrize("kind", [*KINDS, "frozen"])
def test_float32_comes_back_as_it_was(converted, kind, tmp_path):
    ending = ENDINGS.get(kind, "")
    source = converted.folder / f"{kind}-float32{ending}"
    given, target = converted.folder / f"{kind}-given{ending}", tmp_path / "back.pb"
    target = target if ending else target.with_suffix("")
    tf_amp.convert(source, target, to="float32")
    assert graph_of(target) == graph_of(given)
    for file in target.glob("variables/*"):
        if file.suffix != ".index":
            before = given / "variables" / file.name
            assert file.stat().st_size == before.stat().st_size
    assert not files.extras_of(target).exists()


def test_low_weights_come_back_as_float32_values(converted, tmp_path):
    tf_amp.convert(converted.folder / "functional-low", tmp_path / "back", to="float32")
    given, back = (
        tf.train.load_checkpoint(str(folder / "variables" / "variables"))
        for folder in (converted.folder / "functional-given", tmp_path / "back")
    )
    assert graph_of(tmp_path / "back") == graph_of(
        converted.folder / "functional-given"
    )
    assert back.get_variable_to_dtype_map() == given.get_variable_to_dtype_map()
    for key, shape in given.get_variable_to_shape_map().items():
        if len(shape) == 2:
            value, rounded = given.get_tensor(key), back.get_tensor(key)
            assert 0 < np.abs(value - rounded).max() <= np.abs(value).max() * EPSILON


def test_the_report_lies_beside_the_model(converted):
    report = converted.reports["functional-low"]
    folder = converted.folder / "functional-low" / files.EXTRAS
    told = json.loads((folder / "report.json").read_text())
    assert told["bytes_before"] > told["bytes_after"]
    assert told["device"] == report.device_profile == PLANNED["device_profile"]
    assert told["signatures"]["serving_default"]["seconds_before"] > 0
    assert set(told["plans"]) == set(report.plans)
    assert "MatMul" in (folder / "plan.txt").read_text()
    assert "4 variables" in str(report)
    assert (converted.folder / "frozen-low.pb.tf_amp" / "report.json").is_file()


def test_a_variable_that_is_updated_stays_float32(tmp_path):
    class Net(tf.Module):
        def __init__(self):
            self.counted = tf.Variable(tf.ones((64, 64)))
            self.read = tf.Variable(tf.ones((64, 64)))

        @tf.function(input_signature=[tf.TensorSpec((None, 64), name="x")])
        def serve(self, x):
            return {"y": x @ self.counted @ self.read}

        @tf.function(input_signature=[])
        def count(self):
            return self.counted.assign_add(tf.ones((64, 64)))

    net = Net()
    tf.saved_model.save(net, str(tmp_path / "given"), signatures=net.serve)
    report = tf_amp.convert(
        tmp_path / "given", tmp_path / "low", weights="low", **PLANNED
    )
    assert list(report.storage.kept) == ["counted/.ATTRIBUTES/VARIABLE_VALUE"]
    assert report.storage.variables == ("read/.ATTRIBUTES/VARIABLE_VALUE",)
    loaded = tf.saved_model.load(str(tmp_path / "low"))
    loaded.count()
    assert loaded.counted.dtype == tf.float32
    assert loaded.read.dtype == tf.bfloat16
    assert float(loaded.signatures["serving_default"](x=tf.ones((1, 64)))["y"][0, 0])


def test_a_constant_that_16_bits_cannot_hold_stays_float32(tmp_path):
    with tf.Graph().as_default() as graph:
        y = tf.compat.v1.placeholder(tf.float32, (None, 64), "x")
        for name, value in (("fits", 6e4), ("overflows", 7e4)):
            y = tf.matmul(y, tf.constant(value, shape=(64, 64), name=name))
    (tmp_path / "given.pb").write_bytes(graph.as_graph_def().SerializeToString())
    options = {**PLANNED, "dtype": "float16", "weights": "low"}
    report = tf_amp.convert(tmp_path / "given.pb", tmp_path / "out.pb", **options)
    assert report.storage.constants == ("fits",)


def test_what_leaves_the_range_on_calibration_data_stays_float32(tmp_path):
    given = tmp_path / "given"
    inputs = stored_models.functional(given)
    np.savez(tmp_path / "data.npz", x=np.stack([inputs["x"], 1e4 * inputs["x"]]))
    options = {**PLANNED, "dtype": "float16"}
    plain = tf_amp.convert(given, tmp_path / "plain", **options)
    report = tf_amp.convert(
        given, tmp_path / "out", calibration=tmp_path / "data.npz", **options
    )
    (before,), (after,) = plain.plans.values(), report.plans.values()
    assert not before.filter(op="MatMul", reason="measured_range").decisions
    found = after.filter(op="MatMul", reason="measured_range").decisions
    assert len(found) == 2
    assert "batch 2" in str(found[0].reason)


def test_verification_runs_both_models(tmp_path):
    given = tmp_path / "given.pb"
    stored_models.frozen(given)
    report = tf_amp.convert(given, tmp_path / "out.pb", verify=True, **PLANNED)
    (check,) = report.verifications["graph"].checks
    assert 0 < check.mixed.relative < EPSILON * DEPTH
    assert report.is_verified


def test_a_keras_file_is_converted(tmp_path):
    import keras

    inputs = keras.Input((256,), name="x")
    model = keras.Model(inputs, keras.layers.Dense(64)(inputs))
    model.save(tmp_path / "model.keras")
    report = tf_amp.convert(tmp_path / "model.keras", tmp_path / "out", **PLANNED)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    x = np.ones((4, 256), "float32")
    (y,) = loaded.signatures["serving_default"](x=tf.constant(x)).values()
    assert report.kind == "Keras file"
    assert 0 < relative_error(model(x).numpy(), y.numpy()) < EPSILON * DEPTH
