"""What is to be measured: jobs, methods and their environments, digests of programs."""

import dataclasses
import sys

import pytest

from tests.tf_amp.tools.bench.bench_samples import job_of
from tf_amp.config.amp_config import AmpConfig
from tf_amp.errors import ConfigError, ScriptMissingError
from tf_amp.tools.bench.job import (
    FUNCTION,
    SAVED_MODEL,
    SCRIPT,
    Run,
    batches_of,
    digest_of_module,
    digest_of_saved_model,
    environment_of,
    methods_from_text,
    program_of,
    settings_of,
    settings_of_method,
)


def test_all_stands_for_every_method():
    assert methods_from_text("all,tf-amp:O2") == (
        *("float32", "float32 again", "keras", "tensorflow", "tf-amp", "tf-amp:O2"),
    )


def test_methods_take_turns_and_each_round_starts_with_the_next():
    sizes = [(r.round, r.batch) for r in job_of(batches=(1, 32)).runs(2)]
    assert sizes[::2] == [(0, 1), (0, 32), (1, 1), (1, 32)]
    runs = [(r.round, r.batch, r.method) for r in job_of("keras").runs(2)]
    assert runs == [
        (0, 8, "float32"),
        (0, 8, "float32 again"),
        (0, 8, "keras"),
        (1, 8, "float32 again"),
        (1, 8, "keras"),
        (1, 8, "float32"),
    ]


def test_what_is_run_is_told_by_what_there_is(tmp_path):
    script, model = tmp_path / "train.py", tmp_path / "model"
    script.write_text("pass")
    model.mkdir()
    with pytest.raises(ScriptMissingError, match="does not hold a SavedModel"):
        program_of(str(model), (), None)
    (model / "saved_model.pb").touch()
    assert program_of(str(script), ("--fast",), None).kind == SCRIPT
    assert program_of(str(model), (), "serve").kind == SAVED_MODEL
    assert program_of("my.models:step", (), None).kind == FUNCTION


@pytest.mark.parametrize("text", ["nowhere.py", "no:", ":no", "a/b:c", "a:b c"])
def test_what_is_not_there_is_named(text):
    with pytest.raises(ScriptMissingError, match="no such script or SavedModel"):
        program_of(text, (), None)


def test_a_script_gets_its_batch_size_by_place_or_by_variable(tmp_path):
    deaf, reading = tmp_path / "deaf.py", tmp_path / "reading.py"
    deaf.write_text("pass")
    reading.write_text("import os; os.environ['TF_AMP_BENCH_BATCH']")
    placed = program_of(str(deaf), ("--n={batch}",), None)
    assert batches_of(placed, "32, 8,32") == (32, 8)
    assert batches_of(program_of(str(reading), (), None), "4") == (4,)
    assert batches_of(program_of(str(deaf), (), None), None) == (None,)
    assert batches_of(program_of("module:step", (), None), None) == (1, 8, 32)


def test_float32_and_its_repetition_are_always_measured_first():
    assert methods_from_text("tf-amp:o2, keras") == (
        "float32",
        "float32 again",
        "tf-amp:O2",
        "keras",
    )


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("keras", {}),
        ("tf-amp", {}),
        ("tf-amp:O2", {"TF_AMP_OPT_LEVEL": "O2"}),
        ("tf-amp:TUNE=on", {"TF_AMP_TUNE": "on"}),
        (
            "tf-amp:TIE=0.1+DTYPE=float16",
            {"TF_AMP_TIE": "0.1", "TF_AMP_DTYPE": "float16"},
        ),
        (
            "tf-amp:O3+EXCLUDE=a+b head=1+FUSE=off",
            {
                "TF_AMP_OPT_LEVEL": "O3",
                "TF_AMP_EXCLUDE": "a+b head=1",
                "TF_AMP_FUSE": "off",
            },
        ),
    ],
)
def test_what_stands_behind_tf_amp_are_its_settings(method, settings):
    assert methods_from_text(method)[-1] == method
    assert settings_of_method(method) == settings


@pytest.mark.parametrize(
    "text",
    [
        *("jax", "", "tf-amp:", "tf-amp:O7", "keras:O2", "tf-amp:CACHE=x"),
        *("tf-amp:TUNE=", "tf-amp:TUNE=off+O2"),
    ],
)
def test_an_unknown_method_is_named_with_those_allowed(text):
    with pytest.raises(ConfigError) as refused:
        methods_from_text(text)
    said = str(refused.value)
    assert "--methods: received " in said and "\n" not in said
    assert "allowed are" in said


USERS = {
    "HOME": "/home",
    "TF_ENABLE_AUTO_MIXED_PRECISION": "float16",
    "TF_AMP_EXCLUDE": "head/",
    "TF_AMP_CACHE": "own",
    # What the program is told of, and does nothing.
    "TF_AMP_EXLCUDE": "head/",
}


def variables(method, *, is_warm=False):
    job = dataclasses.replace(job_of(), is_warm=is_warm, settings=settings_of(USERS))
    return environment_of(job, Run(method, 8, 0), USERS, "fresh")


def test_only_tf_amp_gets_settings_of_tf_amp():
    for method in ("float32", "float32 again", "keras", "tensorflow"):
        assert variables(method) == {
            "HOME": "/home",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_AMP_BENCH_BATCH": "8",
            "TF_AMP_CACHE": "fresh",
        }
    for method in ("tf-amp", "tf-amp:O2", "tf-amp:TUNE=off"):
        assert variables(method)["TF_AMP_EXCLUDE"] == "head/"
    assert variables("tf-amp")["TF_AMP_CACHE"] == "fresh"
    assert variables("tf-amp", is_warm=True)["TF_AMP_CACHE"] == "own"


def test_the_variable_of_the_batch_size_is_no_unknown_setting():
    assert AmpConfig.from_env(variables("tf-amp")).exclude == ("head/",)


RAISING = "raise AssertionError('imported')\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder that one is in, with a package, a module and a SavedModel."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_package" / "bare").mkdir(parents=True)
    for name in ("__init__", "models", "other", "bare/deep"):
        (tmp_path / "own_package" / f"{name}.py").write_text(RAISING)
    (tmp_path / "own_module.py").write_text(RAISING)
    for name in ("variables", "assets"):
        (tmp_path / "model" / name).mkdir(parents=True)
        (tmp_path / "model" / name / "data").write_text("one")
    (tmp_path / "model" / "saved_model.pb").write_text("one")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "edited", "is_another"),
    [
        ("own_module:make", "own_module.py", True),
        ("own_package:make", "own_package/__init__.py", True),
        ("own_package.models:make", "own_package/models.py", True),
        ("own_package.models:make", "own_package/__init__.py", True),
        ("own_package.bare.deep:make", "own_package/bare/deep.py", True),
        ("model", "model/saved_model.pb", True),
        ("model", "model/variables/data", True),
        ("model", "model/assets/data", True),
        ("own_module.py", "own_module.py", True),
        # Files that are not run are not looked at.
        ("own_package.models:make", "own_package/other.py", False),
        # Where results may be kept beside what was measured.
        ("model", "model/kept.json", False),
    ],
)
def test_an_edited_program_is_another_job(folder, target, edited, is_another):
    before = program_of(target, (), None)
    assert before.digest and program_of(target, (), None) == before
    with (folder / edited).open("a") as file:
        file.write("# edited\n")
    assert (program_of(target, (), None) != before) is is_another
    assert not {"own_module", "own_package"} & set(sys.modules)


def test_a_renamed_file_of_variables_is_another_model(folder):
    before = digest_of_saved_model(folder / "model")
    data = folder / "model" / "variables" / "data"
    data.rename(data.with_name("other"))
    assert digest_of_saved_model(folder / "model") != before


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.models", "sys"])
def test_a_module_without_a_file_is_left_to_the_worker(name):
    assert digest_of_module(name) == ""


def test_the_module_is_that_of_the_present_folder(folder, monkeypatch):
    inner = folder / "inner"
    inner.mkdir()
    (inner / "own_module.py").write_text("pass")
    monkeypatch.syspath_prepend(str(folder))
    outer = digest_of_module("own_module")
    monkeypatch.chdir(inner)
    assert digest_of_module("own_module") != outer


def test_a_file_that_cannot_be_read_is_named(folder):
    (folder / "model" / "saved_model.pb").unlink()
    (folder / "model" / "saved_model.pb").symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match=r"saved_model.pb cannot be read: "):
        program_of("model", (), None)
