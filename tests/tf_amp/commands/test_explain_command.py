"""What `tf-amp explain` prints, row by row and as JSON."""

import json

import pytest
import tensorflow as tf

from grappler_pass.planning.plan import Plan
from tests.forking import run_forked_command
from tf_amp.commands import cli


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


@pytest.mark.parametrize("names", [("once",), ("twice",), ("once", "twice")])
def test_json_is_one_array_of_plans_however_many_there_are(folder, names, capsys):
    only = ["--signature", *names] if len(names) == 1 else []
    assert cli.main(["explain", folder, "--json", *only]) == 0
    found = json.loads(capsys.readouterr().out)
    plans = [Plan.from_json(json.dumps(each)) for each in found]
    products = [len(plan.filter(op="MatMul").decisions) for plan in plans]
    assert products == [{"once": 1, "twice": 2}[name] for name in names]


def test_each_plan_says_which_signature_it_is_for(folder, capsys):
    cli.main(["explain", folder, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [each["graph"] for each in found] == ["once", "twice"]
    cli.main(["explain", folder, "--signature", "once", "--top", "1", "--measure"])
    lines = capsys.readouterr().out.splitlines()
    assert [
        line.split(": ")[0] for line in lines if " type attributes to " in line
    ] == ["once"]
    assert any(line.startswith("once: float32 ") for line in lines)


def test_signatures_with_the_same_plan_are_printed_as_one(tmp_path, capsys):
    module = tf.Module()
    module.fn = tf.function(lambda x: x @ x, input_signature=[tf.TensorSpec([8, 8])])
    signatures = {"serve": module.fn, "serving_default": module.fn}
    tf.saved_model.save(module, str(tmp_path / "model"), signatures=signatures)
    assert cli.main(["explain", str(tmp_path / "model"), "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert set(plan["graph"].split(", ")) == {"serve", "serving_default"}


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


@pytest.mark.usefixtures("disabled_afterwards")
def test_a_batch_that_a_model_leaves_open_is_guessed_aloud_or_named(
    of_any_batch, monkeypatch, capsys
):
    monkeypatch.setenv("TF_AMP_DEVICE_PROFILE", "cpu-amx-bf16")
    assert cli.main(["explain", of_any_batch]) == 0
    guessed = capsys.readouterr().out
    assert guessed.splitlines()[-1].startswith(
        "Sizes that are not known count as 32 where they come first, as 128 elsewhere: "
        "rows ?x512. --batch N sets"
    )
    assert cli.main(["explain", of_any_batch, "--batch", "256", "--json"]) == 0
    (plan,) = map(json.dumps, json.loads(capsys.readouterr().out))
    known = Plan.from_json(plan)
    assert known.guessed == "" and not known.is_empty
    assert "256x512" in str(known) and "?x512" not in str(known)


def test_a_page_is_of_the_batch_that_is_named(of_any_batch, tmp_path):
    pages = {}
    for given in ([], ["--batch", "48"]):
        out = str(tmp_path / "page.html")
        assert cli.main(["report", of_any_batch, "-o", out, *given]) == 0
        pages[len(given)] = (tmp_path / "page.html").read_text()
    assert "48x512" in pages[2] and "count as 32 where they come first" not in pages[2]
    assert "count as 32 where they come first" in pages[0]


def test_numbers_are_of_the_batch_that_is_named(of_any_batch, capsys):
    given = ["verify", of_any_batch, "--dtype", "bfloat16", "--opt-level", "O2"]
    assert cli.main([*given, "--batch", "48", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["checks"][0]["shape"] == [48, 512]
    assert "count as 32" not in found["plan"]
    assert cli.main([*given, "--batch", "48", "--data", "x.npz"]) == 2
    assert "--batch: --data has batches of their own" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "report", "verify"])
def test_a_batch_is_positive_and_of_a_model(command, of_any_batch, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([command, of_any_batch, "--batch", "0"])
    said = capsys.readouterr().err
    assert "argument --batch: received '0'; wanted is 1 or more" in said
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert cli.main([command, str(script), "--batch", "8"]) == 2
    assert "--batch" in capsys.readouterr().err


def test_an_option_that_there_is_not_shows_those_of_the_command(folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["explain", folder, "--bath", "256"])
    said = capsys.readouterr().err
    assert "usage: tf-amp explain" in said and "--batch N" in said
    assert "tf-amp explain: error: unrecognized arguments: --bath 256" in said


def test_a_model_without_signatures_is_refused(tmp_path, capsys):
    tf.saved_model.save(tf.Module(), str(tmp_path / "model"))
    assert cli.main(["explain", str(tmp_path / "model")]) == 2
    assert "has no signatures to run; export it with some" in capsys.readouterr().err


def rows_printed(folder, capsys, *options):
    assert cli.main(["explain", folder, "--signature", "twice", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [line.split() for line in lines if "float32" in line.split()]


def test_as_many_rows_are_printed_as_asked_for_and_all_of_them_for_0(folder, capsys):
    every = rows_printed(folder, capsys)
    assert len(every) > 3
    assert rows_printed(folder, capsys, "--top", "2") == every[:2]
    assert rows_printed(folder, capsys, "--top", "0") == every


@pytest.mark.parametrize("count", ["-3", "2.5", "many", ""])
@pytest.mark.parametrize(
    "command", [("explain", "--top"), ("ranges", "--top")], ids=["explain", "ranges"]
)
def test_a_count_of_rows_that_is_none_is_refused(command, count, folder, capsys):
    name, option = command
    with pytest.raises(SystemExit) as ended:
        cli.main([name, folder, f"{option}={count}"])
    assert ended.value.code == 2
    assert f"{option}: received {count!r}" in capsys.readouterr().err


SCRIPT = """
import sys
import tensorflow as tf
fn = tf.function(lambda x: tf.nn.relu(x @ x))
print("script", sys.argv[1:], float(fn(tf.eye(256) * (1 + 2**-12))[0, 0]) > 1.0)
sys.exit(3)
"""


def test_the_graphs_of_a_script_are_planned_and_run_in_float32(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = ("-m", "tf_amp", "explain", "script.py", "--top", "0", "--", "a")
    env = {"TF_AMP_OPT_LEVEL": "O2", "TF_AMP_DTYPE": "bfloat16"}
    done = run_forked_command(command, cwd=tmp_path, env=env)
    assert done.code == 1
    assert "the script ended with exit code 3" in done.err
    said, summary, heading, *rows = done.out.splitlines()
    assert said == "script ['a'] True"
    assert " of " in summary and "float type attributes to bfloat16 (O2" in summary
    assert heading.startswith("type attribute") and any("MatMul" in row for row in rows)


def test_what_belongs_to_a_saved_model_is_refused_for_scripts(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert cli.main(["explain", str(script), "--measure"]) == 2
    assert "--measure can be given with a SavedModel only" in capsys.readouterr().err
    assert cli.main(["explain", str(tmp_path / "none.py")]) == 2
    assert "no such SavedModel or script" in capsys.readouterr().err
