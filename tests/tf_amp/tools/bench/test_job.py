"""What a command line of `tf-amp bench` stands for, and the runs it plans."""

from __future__ import annotations

import pathlib

import pytest

from tests.tf_amp.tools.bench.bench_samples import job_of
from tf_amp.errors import ConfigError, ScriptMissingError
from tf_amp.tools.bench.job import (
    FUNCTION,
    SAVED_MODEL,
    SCRIPT,
    Job,
    Run,
    Task,
    batches_from_text,
    batches_of,
    target_of,
)


def test_methods_take_turns_and_each_round_starts_with_the_next() -> None:
    runs = [(r.round, r.batch, r.method) for r in job_of("keras").runs(2)]
    assert runs == [
        (0, 8, "float32"),
        (0, 8, "float32 again"),
        (0, 8, "keras"),
        (1, 8, "float32 again"),
        (1, 8, "keras"),
        (1, 8, "float32"),
    ]


def test_each_round_measures_every_batch_size() -> None:
    runs = job_of(batches=(1, 32)).runs(2)
    assert [(r.round, r.batch) for r in runs][::2] == [(0, 1), (0, 32), (1, 1), (1, 32)]


@pytest.mark.parametrize("text", ["0", "-1", "x", "1,,8", "1.5", ""])
def test_a_batch_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--batches: received"):
        batches_from_text(text)


def test_batch_sizes_come_once_each_in_the_order_given() -> None:
    assert batches_from_text("32, 8,32") == (32, 8)


def test_what_is_run_is_told_by_what_there_is(tmp_path: pathlib.Path) -> None:
    script, model = tmp_path / "train.py", tmp_path / "model"
    script.write_text("pass")
    model.mkdir()
    with pytest.raises(ScriptMissingError, match="does not hold a SavedModel"):
        target_of(str(model), (), None)
    (model / "saved_model.pb").touch()
    assert target_of(str(script), ("--fast",), None).kind == SCRIPT
    assert target_of(str(model), (), "serve").kind == SAVED_MODEL
    assert target_of("my.models:step", (), None).kind == FUNCTION


@pytest.mark.parametrize("text", ["nowhere.py", "no:", ":no", "a/b:c", "a:b c"])
def test_what_is_not_there_is_named(text: str) -> None:
    with pytest.raises(ScriptMissingError, match="no such script or SavedModel"):
        target_of(text, (), None)


def test_options_of_other_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="--signature belongs"):
        target_of("module:step", (), "serve")
    with pytest.raises(ConfigError, match="belong to scripts"):
        target_of("module:step", ("--fast",), None)


def test_another_text_of_a_script_is_another_job(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    before = target_of(str(script), (), None)
    script.write_text("two")
    assert target_of(str(script), (), None) != before


def test_a_script_gets_its_batch_size_by_place_or_by_variable(
    tmp_path: pathlib.Path,
) -> None:
    deaf, reading = tmp_path / "deaf.py", tmp_path / "reading.py"
    deaf.write_text("pass")
    reading.write_text("import os; os.environ['TF_AMP_BENCH_BATCH']")
    placed = target_of(str(deaf), ("--n={batch}",), None)
    assert batches_of(placed, (4,)) == (4,)
    assert batches_of(target_of(str(reading), (), None), (4,)) == (4,)
    assert batches_of(target_of(str(deaf), (), None), None) == (None,)
    with pytest.raises(ConfigError, match=r"\{batch\} .* needs --batches"):
        batches_of(placed, None)
    with pytest.raises(ConfigError, match="no way to receive a batch size"):
        batches_of(target_of(str(deaf), (), None), (4,))


def test_other_targets_have_batch_sizes_of_their_own() -> None:
    assert batches_of(target_of("module:step", (), None), None) == (1, 8, 32)


def test_a_task_survives_the_command_line(tmp_path: pathlib.Path) -> None:
    target = target_of(__file__, ("a b", "--n={batch}"), None)
    job = Job(target, "infer", ("float32", "tf-amp:O2"), (None,), 600.0, 3.0)
    task = Task(job, Run("tf-amp:O2", None, 0), str(tmp_path))
    assert Task.from_json(task.to_json()) == task
