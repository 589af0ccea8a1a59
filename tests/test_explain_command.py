"""What `tf-amp explain` prints, row by row and as JSON."""

import json

import pytest
import tensorflow as tf

from grappler_pass.plan import Plan
from tf_amp import cli


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
    "command",
    [("explain", "--top"), ("ranges", "--top"), ("costs", "show", "--limit")],
    ids=["explain", "ranges", "costs"],
)
def test_a_count_of_rows_that_is_none_is_refused(command, count, folder, capsys):
    *names, option = command
    model = [] if "costs" in names else [folder]
    with pytest.raises(SystemExit) as ended:
        cli.main([*names, *model, f"{option}={count}"])
    assert ended.value.code == 2
    assert f"{option}: received {count!r}" in capsys.readouterr().err
