"""Plans, pages and numbers of SavedModels, and of scripts that have graphs."""

import json
import re

import pytest
import tensorflow as tf

import tf_amp
from grappler_pass.planning.plan import Plan
from tests.command_lines import run_line
from tf_amp.commands import cli

PAGE = "tf-amp report train.py -o page.html --device-profile cpu-avx512-bf16"
SCRIPT = """
import sys
import tensorflow as tf
fn = tf.function(lambda x: tf.nn.relu(x @ x))
print("script", sys.argv[1:], float(fn(tf.eye(256) * (1 + 2**-12))[0, 0]) > 1.0)
sys.exit(3)
"""
PARENT = """
import os, subprocess, sys
import tensorflow as tf

CHILD = '''
import tf_amp.runtime._autostart_finder
import tensorflow as tf

@tf.function
def started(x):
    return tf.nn.relu((x @ x) @ x) @ x

started(tf.eye(256))
'''
if not os.fork():
    @tf.function
    def forked(x):
        return tf.nn.relu(x @ x)

    forked(tf.eye(256))
    os._exit(0)
os.wait()
subprocess.run([sys.executable, "-c", CHILD], check=True)

@tf.function
def own(x):
    return x @ tf.nn.relu(x @ x)

own(tf.eye(256))
"""
FIT = """
import keras, numpy as np

model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8, use_bias=False)])
model.compile("sgd", "mse", jit_compile=False)
model.fit(np.ones((32, 8)), np.full((32, 8), 100), batch_size=4, verbose=0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A SavedModel with two signatures, of other graphs."""
    module = tf.Module()
    spec = tf.TensorSpec([64, 64])
    module.once = tf.function(lambda x: x @ x)
    module.twice = tf.function(lambda x: (x @ x) @ x)
    functions = {"once": module.once, "twice": module.twice}
    signatures = {n: fn.get_concrete_function(spec) for n, fn in functions.items()}
    folder = tmp_path_factory.mktemp("models") / "model"
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return str(folder)


@pytest.fixture(scope="module")
def of_any_batch(tmp_path_factory):
    """A SavedModel that leaves the size of a batch open, at 256 worth 16 bits."""
    module = tf.Module()
    module.weight = tf.Variable(tf.ones([512, 512]))
    spec = tf.TensorSpec([None, 512], name="rows")
    module.serve = tf.function(
        lambda rows: tf.nn.relu(rows @ module.weight) @ module.weight,
        input_signature=[spec],
    )
    folder = tmp_path_factory.mktemp("models") / "open"
    tf.saved_model.save(module, str(folder), signatures={"serve": module.serve})
    return str(folder)


def test_json_is_one_array_of_plans(folder, capsys):
    assert cli.main(["explain", folder, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    plans = [Plan.from_json(json.dumps(each)) for each in rows]
    products = {p.graph: len(p.filter(op="MatMul").decisions) for p in plans}
    assert products == {"once": 1, "twice": 2}


@pytest.mark.usefixtures("disabled_afterwards")
def test_a_batch_that_a_model_leaves_open_is_guessed_aloud_or_named(
    of_any_batch, monkeypatch, capsys
):
    monkeypatch.setenv("TF_AMP_DEVICE_PROFILE", "cpu-amx-bf16")
    assert cli.main(["explain", of_any_batch]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "An unknown first size counts as 32, any other one as 128: rows ?x512. "
        "--batch N sets"
    ) in said
    assert cli.main(["explain", of_any_batch, "--batch", "256", "--json"]) == 0
    (plan,) = map(json.dumps, json.loads(capsys.readouterr().out))
    known = Plan.from_json(plan)
    assert known.guessed == "" and not known.is_empty
    assert "256x512" in str(known) and "?x512" not in str(known)


def test_pages_and_numbers_are_of_the_batch_that_is_named(
    of_any_batch, tmp_path, capsys
):
    pages = {}
    for given in ([], ["--batch", "48"]):
        out = str(tmp_path / "page.html")
        assert cli.main(["report", of_any_batch, "-o", out, *given]) == 0
        pages[len(given)] = (tmp_path / "page.html").read_text()
    assert "48x512" in pages[2] and "first size counts as 32" not in pages[2]
    assert "first size counts as 32" in pages[0]
    capsys.readouterr()
    given = ["verify", of_any_batch, "--dtype", "bfloat16", "--opt-level", "O2"]
    assert cli.main([*given, "--batch", "48", "--json"]) == 0
    (verification,) = json.loads(capsys.readouterr().out)
    assert verification["checks"][0]["shape"] == [48, 512]
    assert "counts as 32" not in verification["plan"]


def test_a_script_has_a_page_though_it_fails(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    outcome = run_line(PAGE, tmp_path)
    assert outcome.code == 1, outcome.err
    html = (tmp_path / "page.html").read_text()
    assert "Precision of train.py" in html and "Where the time goes" in html


@pytest.mark.parametrize("folder", ["", "graphs"])
def test_a_page_has_the_graphs_of_child_processes(folder, tmp_path):
    (tmp_path / "train.py").write_text(PARENT)
    done = run_line(PAGE, tmp_path, env={"TF_AMP_LOG": folder})
    assert done.code == 0, done.err
    html = (tmp_path / "page.html").read_text()
    assert all(f"{name}</h" in html for name in ("forked", "started", "own"))
    assert f"3 graphs written to {tmp_path}/page.html." in done.err
    assert (tmp_path / "graphs").exists() == bool(folder)


def test_a_page_of_fit_has_the_skipped_steps_and_the_last_loss_scale(tmp_path):
    (tmp_path / "train.py").write_text(FIT)
    env = {
        "TF_AMP_DTYPE": "float16",
        "TF_AMP_OPT_LEVEL": "O2",
        "TF_AMP_LOSS_SCALE": f"dynamic:initial={2**24}",
        "TF_AMP_LOG": "graphs",
    }
    done = run_line("tf-amp report train.py -o page.html", tmp_path, env=env)
    assert done.code == 0, done.err
    html = (tmp_path / "page.html").read_text()
    card = re.search(r"<b>(\d+)</b><span>steps skipped</span><small>(.*)</small>", html)
    assert card is not None and 0 < int(card[1]) <= 8
    assert f"loss scale {2.0 ** (24 - int(card[1])):g} when the job ended" in card[2]
    # The folder of TF_AMP_LOG is written as without a page.
    assert any((tmp_path / "graphs").glob("*.plan.json"))


def test_files_that_cannot_be_read_are_named_in_a_line_each(tmp_path, capsys):
    function = tf.function(lambda x: x @ x)
    plan = tf_amp.explain(function, tf.TensorSpec([64, 64]))
    (tmp_path / "1.plan.json").write_text(plan.to_json())
    (tmp_path / "2.plan.json").write_text(plan.to_json()[:-9])
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path), "-o", str(page)]) == 0
    left_out, written = capsys.readouterr().err.splitlines()
    assert left_out.startswith(f"tf-amp: left out: {tmp_path / '2.plan.json'} is no")
    assert str(page) in written and page.exists()
