"""What cannot be converted: the message says why, and nothing is left behind."""

from __future__ import annotations

import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_amp
from tests import stored_models
from tests.processes import run_python
from tests.stored_models import PLANNED
from tf_amp.errors import (
    AlreadyMixedError,
    ConfigError,
    ScriptMissingError,
    UnfitDataError,
    UnreadableModelError,
)
from tf_amp.tools.convert import files


@pytest.fixture
def sources(model: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a folder of what is no model, or is not whole."""
    folder = tmp_path / "sources"
    for name in ("no_graph", "half_a_graph", "half_of_variables"):
        shutil.copytree(model, folder / name)
    (folder / "empty").mkdir()
    (folder / "text.txt").write_text("a")
    (folder / "cut.keras").write_bytes(b"PK")
    stored_models.frozen(folder / "graph.pb")
    (data,) = (folder / "half_of_variables" / "variables").glob("*.data-*")
    cuts = (
        (folder / "no_graph" / "saved_model.pb", 0.0),
        (folder / "half_a_graph" / "saved_model.pb", 0.5),
        (data, 0.5),
        (folder / "graph.pb", 0.001),
    )
    for path, share in cuts:
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])
    return folder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty", r"has no saved_model\.pb"),
        ("text.txt", "is no model"),
        ("no_graph", r"saved_model\.pb"),
        ("half_a_graph", r"saved_model\.pb"),
        ("half_of_variables", "variables is damaged or cut off"),
        ("cut.keras", r"cut\.keras is damaged or cut off"),
        ("graph.pb", r"graph\.pb"),
    ],
)
def test_what_is_no_model_or_was_cut_off_is_refused(
    sources: pathlib.Path, name: str, words: str
) -> None:
    out = sources.parent / ("out.pb" if name.endswith(".pb") else "out")
    with pytest.raises(UnreadableModelError, match=words):
        tf_amp.convert(sources / name, out)
    assert not out.exists()


def test_a_missing_model_is_named_in_one_line_and_the_command_exits_with_2(
    tmp_path: pathlib.Path,
) -> None:
    missing = tmp_path / "nowhere"
    with pytest.raises(ScriptMissingError, match=r"nowhere does not exist.*SavedModel"):
        tf_amp.convert(missing, tmp_path / "out")
    done = run_python(
        f"""
        import sys
        from tf_amp.commands import cli
        sys.exit(cli.main(["convert", {str(missing)!r}, "out"]))
        """
    )
    assert done.code == 2
    assert re.search(r"^tf-amp: .*nowhere does not exist", done.err, re.MULTILINE)


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


def test_a_model_without_signatures_is_converted_with_a_warning(
    tmp_path: pathlib.Path,
) -> None:
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


@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_op_that_is_not_known_stays_float32_and_is_named(
    model: pathlib.Path, tmp_path: pathlib.Path, is_frozen: bool
) -> None:
    ending = ".pb" if is_frozen else ""
    given, out = (tmp_path / f"{name}{ending}" for name in ("in", "out"))
    if is_frozen:
        stored_models.frozen(given)
    else:
        shutil.copytree(model, given)

    def named(path: pathlib.Path, op: str) -> tuple[Any, list[Any]]:
        """Return a model, and the nodes of an op in it and in its functions."""
        found = files.read(path)
        graph_def = found.meta_graphs[0].graph_def
        bodies = (graph_def.node, *(f.node_def for f in graph_def.library.function))
        return found, [node for body in bodies for node in body if node.op == op]

    saved, relus = named(given, "Relu")
    for relu in relus:
        relu.op = "SomebodysRelu"
    content = files.bytes_from_model(saved, is_frozen=is_frozen)
    (given if is_frozen else given / "saved_model.pb").write_bytes(content)
    report = tf_amp.convert(given, out, **PLANNED)
    assert "SomebodysRelu" in report.warnings[0]
    assert not is_frozen or "SomebodysRelu (1 nodes)" in report.warnings[0]
    _, kept = named(out, "SomebodysRelu")
    assert [dict(node.attr)["T"] for node in kept] == [r.attr["T"] for r in relus]
    (plan,) = report.plans.values()
    assert len(plan.filter(reason="forced").filter(op="MatMul").decisions) == 2


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
    data = tmp_path / "data.npz"
    np.savez(data, **arrays)
    with pytest.raises(UnfitDataError, match=words):
        tf_amp.convert(model, tmp_path / "out", calibration=data, **PLANNED)
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
