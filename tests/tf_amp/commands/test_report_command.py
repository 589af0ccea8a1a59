"""`tf-amp report` of scripts, models, folders and files, and what it refuses."""

from __future__ import annotations

import pathlib
import re

import pytest
import tensorflow as tf

import tf_amp
from tests.forking import run_forked_command
from tf_amp.commands import cli

SCRIPT = """
import sys
import tensorflow as tf

fn = tf.function(lambda x: tf.nn.relu(x @ x, name="top") @ x)
fn(tf.ones((256, 256)))
sys.exit({code})
"""


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(code=3))
    return path


def test_a_script_is_run_and_has_a_page_though_it_fails(script):
    arguments = ["-m", "tf_amp", "report", "train.py", "-o", "page.html"]
    outcome = run_forked_command(
        [*arguments, "--device-profile", "cpu-avx512-bf16"], cwd=script.parent
    )
    assert outcome.code == 1, outcome.err
    html = (script.parent / "page.html").read_text()
    assert "Precision of train.py" in html and "Where the time goes" in html


def test_a_saved_model_has_a_page(tmp_path, capsys):
    module = tf.Module()
    module.fn = tf.function(lambda x: x @ x, [tf.TensorSpec([64, 64])])
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=module.fn)
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path / "model"), "-o", str(page)]) == 0
    assert "serving_default" in page.read_text()
    assert f"{page} has 1 graph." in capsys.readouterr().err


FIT = """
import keras, numpy as np

model = keras.Sequential([keras.Input([8]), keras.layers.Dense(8, use_bias=False)])
model.compile("sgd", "mse", jit_compile=False)
model.fit(np.ones((32, 8)), np.full((32, 8), 100), batch_size=4, verbose=0)
"""


def test_a_page_of_fit_has_the_skipped_steps_and_the_last_loss_scale(tmp_path):
    (tmp_path / "train.py").write_text(FIT)
    env = {
        "TF_AMP_DTYPE": "float16",
        "TF_AMP_OPT_LEVEL": "O2",
        "TF_AMP_LOSS_SCALE": f"dynamic:initial={2**24}",
    }
    arguments = ("-m", "tf_amp", "report", "train.py", "-o", "page.html")
    done = run_forked_command(arguments, cwd=tmp_path, env=env)
    assert done.code == 0, done.err
    html = (tmp_path / "page.html").read_text()
    card = re.search(r"<b>(\d+)</b><span>steps skipped</span><small>(.*)</small>", html)
    assert card is not None and 0 < int(card[1]) <= 8
    assert f"loss scale {2.0 ** (24 - int(card[1])):g} when the job ended" in card[2]


def test_another_model_beside_a_job_is_refused_for_what_it_is(script, capsys):
    (script.parent / "saved_model.pb").touch()
    told = refused(capsys, script, "--compare", script.parent)
    assert "a SavedModel; allowed is a folder that TF_AMP_LOG" in told


def refused(capsys, *arguments: object) -> str:
    assert cli.main(["report", *map(str, arguments)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("tf-amp: ") and err.count("\n") == 1
    return err


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


def test_what_makes_no_sense_is_refused_before_anything_runs(script, capsys):
    folder = script.parent
    assert "no such script" in refused(capsys, folder / "absent.py")
    assert "TF_AMP_LOG=FOLDER" in refused(capsys, folder)
    assert "--measure" in refused(capsys, script, "--measure")
    assert "--seconds" in refused(capsys, folder, "--seconds", "3")
    lost = folder / "absent" / "page.html"
    for path in (lost, folder):
        said = refused(capsys, script, "-o", path)
        assert f"-o: {path} cannot be written" in said
    other = folder / "absent.json"
    assert "absent.json" in refused(capsys, script, "--compare", other)
    assert "train.py, a script; allowed" in refused(capsys, script, "--compare", script)
    assert {each.name for each in folder.iterdir()} == {"train.py"}
