"""What cannot be converted: the message says why, and nothing is left behind."""

import re
import shutil

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

DATA = {
    "lacking": {"y": np.ones((4, 256), "float32")},
    "narrow": {"x": np.ones((4, 255), "float32")},
    "whole": {"x": np.ones((4, 256), "int32")},
    "nan": {"x": np.full((4, 256), np.nan, "float32")},
}


@pytest.fixture(scope="module")
def sources(model, tmp_path_factory):
    """Return a folder of models, of what is none or is not whole, and of data."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("model", "no_graph", "half_a_graph", "half_of_variables"):
        shutil.copytree(model, folder / name)
    for name in ("empty", "links"):
        (folder / name).mkdir()
    (folder / "links" / "link").symlink_to(folder / "model")
    (folder / "text.txt").write_text("a")
    (folder / "cut.keras").write_bytes(b"PK")
    for name in ("whole.pb", "cut.pb"):
        stored_models.frozen(folder / name)
    (data,) = (folder / "half_of_variables" / "variables").glob("*.data-*")
    cuts = (
        (folder / "no_graph" / "saved_model.pb", 0.0),
        (folder / "half_a_graph" / "saved_model.pb", 0.5),
        (data, 0.5),
        (folder / "cut.pb", 0.001),
    )
    for path, share in cuts:
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])
    tf.saved_model.save(tf.Module(), str(folder / "bare"))
    tf_amp.convert(model, folder / "mixed", **PLANNED)
    options = {**PLANNED, "opt_level": "O0", "weights": "low"}
    summary = tf_amp.convert(model, folder / "low", **options).summary()
    assert "computes in float32 as before" in summary
    assert summary.endswith("; weights are stored in bfloat16")
    for name, arrays in DATA.items():
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


# What is converted with which options, and what is said.
BACK, OF_MIXED = {"to": "float32"}, "belong to conversions to mixed precision"
KINDS = [
    ("cut.keras", "o.keras", "a SavedModel, which is a folder; a .keras file"),
    ("cut.keras", "o.keras", r"such as \S*/o, which keras.layers.TFSMLayer"),
    ("cut.keras", "o.H5", r"a folder\. Name another OUT, such as \S*/o,"),
    ("model", "o.pb", r"such as \S*/o,"),
    ("whole.pb", "o.keras", r"what is written is a frozen graph.*o\.pb\."),
]
REFUSED = {
    UnreadableModelError: [
        ("empty", {}, r"has no saved_model\.pb"),
        ("text.txt", {}, "is no model"),
        ("no_graph", {}, r"saved_model\.pb"),
        ("half_a_graph", {}, r"saved_model\.pb"),
        ("half_of_variables", {}, "variables is damaged or cut off"),
        ("cut.keras", {}, r"cut\.keras is damaged or cut off"),
        ("cut.pb", {"target": "out.pb"}, r"cut\.pb"),
        ("model", BACK, "only a model that tf-amp"),
    ],
    ScriptMissingError: [("nowhere", {}, r"nowhere does not exist.*SavedModel")],
    AlreadyMixedError: [
        ("mixed", PLANNED, r"2 MatMul in bfloat16"),
        ("low", PLANNED, "4 variables"),
    ],
    UnfitDataError: [
        ("model", {"calibration": "lacking"}, r"lacks x.*x: float32 \[\?, 256\]"),
        ("model", {"calibration": "narrow"}, r"x: float32 \[\?, 256\]"),
        ("model", {"calibration": "whole"}, "x is int32.*x: float32"),
        ("model", {"calibration": "nan"}, r"x holds NaN \(1024 of 1024"),
    ],
    ConfigError: [
        *((source, {"target": to}, words) for source, to, words in KINDS),
        *((source, {"target": to, **BACK}, words) for source, to, words in KINDS),
        ("model", {"weights": "int8"}, "weights: received 'int8'; allowed are float32"),
        (
            "model",
            {"to": "float64"},
            "to: received 'float64'; allowed are mixed, fl",
        ),
        ("model", {"batch": 0}, "batch: received 0"),
        ("model", {**BACK, "weights": "low"}, "belong to conversions"),
        ("model", {"device_profile": "no-such"}, "unknown .* Known are a100"),
        ("model", {"dtype": "int8"}, "dtype: received 'int8'"),
        ("bare", {"verify": True}, "verify: .* has no signature that could be"),
        ("whole.pb", {"target": "o.pb", "keep_io": False}, "which has no signatures"),
        ("whole.pb", {**BACK, "keep_io": False}, OF_MIXED),
        ("mixed", {**BACK, "verify": True}, OF_MIXED),
        # Nor may one lie within the other.
        ("model", {"target": "../model", "overwrite": True}, "the same"),
        ("model", {"target": "../model/out", "overwrite": True}, "inside IN"),
        ("model", {"target": "../links/link/out", "overwrite": True}, "inside IN"),
        ("model", {"target": "..", "overwrite": True}, "inside OUT"),
    ],
}
ROWS = [(error, *row) for error, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("error", "source", "options", "words"), ROWS)
def test_it_is_said_why_a_model_is_not_converted(
    sources, error, source, options, words
):
    target = options.get("target", "out")
    options = {name: value for name, value in options.items() if name != "target"}
    place = sources / "written"
    place.mkdir(exist_ok=True)
    if data := options.get("calibration"):
        options = {**PLANNED, "calibration": sources / f"{data}.npz"}
    with pytest.raises(error, match=words):
        tf_amp.convert(sources / source, place / target, **options)
    assert not any(place.iterdir()) and not (sources / "model" / "out").exists()


def test_a_command_that_is_refused_exits_with_2_and_one_line(tmp_path):
    missing = tmp_path / "nowhere"
    done = run_python(
        f"""
        import sys
        from tf_amp.commands import cli
        sys.exit(cli.main(["convert", {str(missing)!r}, "out"]))
        """
    )
    assert done.code == 2
    assert re.search(r"^tf-amp: .*nowhere does not exist", done.err, re.MULTILINE)


def test_a_model_without_signatures_is_converted_with_a_warning(tmp_path):
    class Net(tf.Module):
        def __init__(self):
            self.w = tf.Variable(tf.ones((256, 256)))

        @tf.function(input_signature=[tf.TensorSpec((256, 256))])
        def run(self, x):
            return x @ self.w

        @tf.function(input_signature=[tf.TensorSpec((256, 256))])
        def other(self, x):
            return x

    tf.saved_model.save(Net(), str(tmp_path / "given"))
    report = tf_amp.convert(tmp_path / "given", tmp_path / "out", **PLANNED)
    assert "no signatures" in report.warnings[0]
    assert any(not plan.is_empty for plan in report.plans.values())


@pytest.mark.parametrize("is_frozen", [True, False])
def test_an_op_that_is_not_known_stays_float32_and_is_named(model, tmp_path, is_frozen):
    ending = ".pb" if is_frozen else ""
    given, out = (tmp_path / f"{name}{ending}" for name in ("in", "out"))
    if is_frozen:
        stored_models.frozen(given)
    else:
        shutil.copytree(model, given)

    def named(path, op):
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


def test_an_exclusion_that_matches_nothing_is_told(model, tmp_path):
    report = tf_amp.convert(
        model, tmp_path / "out", exclude=["no_such_layer", "MatMul"], **PLANNED
    )
    assert len(report.warnings) == 1
    assert "'no_such_layer' matches no operation" in report.warnings[0]
    assert all(plan.is_empty for plan in report.plans.values())


def test_a_lambda_layer_is_not_run_unless_the_user_allows_it(tmp_path):
    import keras

    inputs = keras.Input((4,), name="x")
    outputs = keras.layers.Lambda(lambda x: x * 2)(inputs)
    keras.Model(inputs, outputs).save(tmp_path / "model.keras")
    with pytest.raises(UnreadableModelError, match=r"was not run.*--allow-lambda"):
        tf_amp.convert(tmp_path / "model.keras", tmp_path / "out")
    tf_amp.convert(tmp_path / "model.keras", tmp_path / "out", allow_lambda=True)
    assert (tmp_path / "out" / "saved_model.pb").is_file()
