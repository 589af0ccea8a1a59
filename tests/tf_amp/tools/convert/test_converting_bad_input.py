"""What cannot be converted: the message says why, and nothing is left behind."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

import tf_amp
from tests import stored_models
from tests.processes import run_python
from tf_amp.errors import (
    AlreadyMixedError,
    ConfigError,
    ScriptMissingError,
    UnfitDataError,
    UnreadableModelError,
)

PLANNED = {"device_profile": "cpu-avx512-bf16", "opt_level": "O2", "dtype": "bfloat16"}


@pytest.fixture
def graph(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    path = tmp_path / "graph.pb"
    stored_models.frozen(path)
    yield path


def copied(folder: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    import shutil

    shutil.copytree(folder, target)
    return target


def test_a_missing_model_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ScriptMissingError, match=r"nowhere does not exist.*SavedModel"):
        tf_amp.convert(tmp_path / "nowhere", tmp_path / "out")


def test_a_folder_without_a_model_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnreadableModelError, match=r"has no saved_model\.pb"):
        tf_amp.convert(tmp_path / "empty", tmp_path / "out")
    (tmp_path / "text.txt").write_text("a")
    with pytest.raises(UnreadableModelError, match=r"is no model"):
        tf_amp.convert(tmp_path / "text.txt", tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("net.keras", "out.keras", "a SavedModel, which is a folder; a .keras file"),
        ("net.keras", "out.keras", r"such as \S*/out, which keras.layers.TFSMLayer"),
        ("net.keras", "out.H5", r"a folder\. Name another OUT, such as \S*/out,"),
        ("model", "out.pb", r"such as \S*/out,"),
        ("graph.pb", "out.keras", r"what is written is a frozen graph.*out\.pb\."),
    ],
)
@pytest.mark.parametrize("to", ["mixed", "float32"])
def test_a_name_of_another_kind_of_model_is_refused(
    tmp_path: pathlib.Path, source: str, target: str, words: str, to: str
) -> None:
    (tmp_path / "model").mkdir()
    for name in ("model/saved_model.pb", "net.keras", "graph.pb"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=words):
        tf_amp.convert(tmp_path / source, tmp_path / target, to=to)
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_graph_that_was_cut_off_is_refused(
    model: pathlib.Path, tmp_path: pathlib.Path, share: float
) -> None:
    cut = copied(model, tmp_path / "cut")
    data = (cut / "saved_model.pb").read_bytes()
    (cut / "saved_model.pb").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(UnreadableModelError, match=r"saved_model\.pb"):
        tf_amp.convert(cut, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_variables_that_were_cut_off_are_refused(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    cut = copied(model, tmp_path / "cut")
    (data,) = (cut / "variables").glob("*.data-*")
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    with pytest.raises(UnreadableModelError, match="variables is damaged or cut off"):
        tf_amp.convert(cut, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_keras_file_that_was_cut_off_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"PK")
    with pytest.raises(
        UnreadableModelError, match=r"model\.keras is damaged or cut off"
    ):
        tf_amp.convert(tmp_path / "model.keras", tmp_path / "out")


def test_a_frozen_graph_that_was_cut_off_is_refused(
    graph: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    graph.write_bytes(graph.read_bytes()[:1000])
    with pytest.raises(UnreadableModelError, match=r"graph\.pb"):
        tf_amp.convert(graph, tmp_path / "out.pb")


def test_a_model_without_signatures_is_converted_with_a_warning(
    tmp_path: pathlib.Path,
) -> None:
    import tensorflow as tf

    class Net(tf.Module):
        def __init__(self) -> None:
            self.w = tf.Variable(tf.ones((256, 256)))

        @tf.function(input_signature=[tf.TensorSpec((256, 256))])
        def run(self, x: Any) -> Any:
            return x @ self.w

        @tf.function(input_signature=[tf.TensorSpec((256, 256))])
        def other(self, x: Any) -> Any:
            return x

    tf.saved_model.save(Net(), str(tmp_path / "given"))
    report = tf_amp.convert(tmp_path / "given", tmp_path / "out", **PLANNED)
    assert "no signatures" in report.warnings[0]
    assert any(not plan.is_empty for plan in report.plans.values())


def test_an_op_that_is_not_known_stays_float32_and_is_named(
    graph: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    graph_def = GraphDef.FromString(graph.read_bytes())
    relu = next(node for node in graph_def.node if node.op == "Relu")
    relu.op = "SomebodysRelu"
    graph.write_bytes(graph_def.SerializeToString())
    report = tf_amp.convert(graph, tmp_path / "out.pb", **PLANNED)
    assert "SomebodysRelu (1 nodes)" in report.warnings[0]
    found = GraphDef.FromString((tmp_path / "out.pb").read_bytes())
    (kept,) = [node for node in found.node if node.op == "SomebodysRelu"]
    assert kept.attr == relu.attr
    (plan,) = report.plans.values()
    assert len(plan.filter(reason="forced").filter(op="MatMul").decisions) == 2


def test_an_op_that_is_not_known_in_a_function_stays_float32(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    given = copied(model, tmp_path / "given")
    saved = SavedModel.FromString((given / "saved_model.pb").read_bytes())
    for function in saved.meta_graphs[0].graph_def.library.function:
        for node in function.node_def:
            node.op = "SomebodysRelu" if node.op == "Relu" else node.op
    (given / "saved_model.pb").write_bytes(saved.SerializeToString())
    report = tf_amp.convert(given, tmp_path / "out", **PLANNED)
    assert "SomebodysRelu" in report.warnings[0]
    (plan,) = report.plans.values()
    assert len(plan.filter(reason="forced").filter(op="MatMul").decisions) == 2
    data = (tmp_path / "out" / "saved_model.pb").read_bytes()
    assert b"SomebodysRelu" in data


def test_a_model_in_mixed_precision_is_left_as_it_is(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    tf_amp.convert(model, tmp_path / "mixed", **PLANNED)
    with pytest.raises(AlreadyMixedError, match=r"2 MatMul in bfloat16"):
        tf_amp.convert(tmp_path / "mixed", tmp_path / "out", **PLANNED)
    assert not (tmp_path / "out").exists()


def test_a_model_with_low_weights_alone_counts_as_converted(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    options = {**PLANNED, "opt_level": "O0", "weights": "low"}
    summary = tf_amp.convert(model, tmp_path / "low", **options).summary()
    assert "computes in float32 as before" in summary
    assert summary.endswith("; weights are stored in bfloat16")
    with pytest.raises(AlreadyMixedError, match="4 variables"):
        tf_amp.convert(tmp_path / "low", tmp_path / "out", **PLANNED)


def test_only_a_converted_model_goes_back(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(UnreadableModelError, match="only a model that tf-amp"):
        tf_amp.convert(model, tmp_path / "out", to="float32")


def test_an_exclusion_that_matches_nothing_is_told(
    model: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    report = tf_amp.convert(
        model, tmp_path / "out", exclude=["no_such_layer", "MatMul"], **PLANNED
    )
    assert len(report.warnings) == 1
    assert "'no_such_layer' matches no operation" in report.warnings[0]
    assert all(plan.is_empty for plan in report.plans.values())


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"y": np.ones((4, 256), "float32")}, r"lacks x.*x: float32 \[\?, 256\]"),
        ({"x": np.ones((4, 255), "float32")}, r"x: float32 \[\?, 256\]"),
        ({"x": np.ones((4, 256), "int32")}, r"x is int32.*x: float32"),
        ({"x": np.full((4, 256), np.nan, "float32")}, r"x holds NaN \(1024 of 1024"),
    ],
)
def test_calibration_data_that_does_not_fit_is_refused(
    model: pathlib.Path, tmp_path: pathlib.Path, arrays: Any, words: str
) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(UnfitDataError, match=words):
        tf_amp.convert(
            model, tmp_path / "out", calibration=tmp_path / "data.npz", **PLANNED
        )
    assert [p.name for p in tmp_path.iterdir()] == ["data.npz"]


def test_a_lambda_layer_is_not_run_unless_the_user_allows_it(
    tmp_path: pathlib.Path,
) -> None:
    import keras

    inputs = keras.Input((4,), name="x")
    outputs = keras.layers.Lambda(lambda x: x * 2)(inputs)
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    with pytest.raises(UnreadableModelError, match=r"was not run.*--allow-lambda"):
        tf_amp.convert(tmp_path / "model.keras", tmp_path / "out")
    tf_amp.convert(tmp_path / "model.keras", tmp_path / "out", allow_lambda=True)
    assert (tmp_path / "out" / "saved_model.pb").is_file()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "int8"}, "weights: received 'int8'; allowed are float32, low"),
        ({"to": "float64"}, "to: received 'float64'; allowed are mixed, float32"),
        ({"batch": 0}, "batch: received 0"),
        ({"to": "float32", "weights": "low"}, "belong to conversions"),
        ({"device_profile": "no-such"}, "device_profile: unknown .* Known are a100"),
        ({"dtype": "int8"}, "dtype: received 'int8'"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    model: pathlib.Path, tmp_path: pathlib.Path, options: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        tf_amp.convert(model, tmp_path / "out", **options)
    assert not any(tmp_path.iterdir())


def test_the_command_prints_one_line_and_exits_with_2(tmp_path: pathlib.Path) -> None:
    done = run_python(
        f"""
        import sys
        from tf_amp.commands import cli
        sys.exit(cli.main(["convert", {str(tmp_path / "nowhere")!r}, "out"]))
        """
    )
    assert done.code == 2
    assert re.search(r"^tf-amp: .*nowhere does not exist", done.err, re.MULTILINE)
