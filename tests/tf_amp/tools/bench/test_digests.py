"""An edited program is another job; nothing is imported to see it."""

from __future__ import annotations

import pathlib
import sys

import pytest

from tf_amp.errors import ConfigError
from tf_amp.tools.bench.job import digest_of_module, digest_of_saved_model, target_of

RAISING = "raise AssertionError('imported')\n"


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
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
    ("target", "edited"),
    [
        ("own_module:make", "own_module.py"),
        ("own_package:make", "own_package/__init__.py"),
        ("own_package.models:make", "own_package/models.py"),
        ("own_package.models:make", "own_package/__init__.py"),
        ("own_package.bare.deep:make", "own_package/bare/deep.py"),
        ("model", "model/saved_model.pb"),
        ("model", "model/variables/data"),
        ("model", "model/assets/data"),
        ("own_module.py", "own_module.py"),
    ],
)
def test_an_edited_program_is_another_job(
    folder: pathlib.Path, target: str, edited: str
) -> None:
    before = target_of(target, (), None)
    assert before.digest and target_of(target, (), None) == before
    with (folder / edited).open("a") as file:
        file.write("# edited\n")
    assert target_of(target, (), None) != before
    assert not {"own_module", "own_package"} & set(sys.modules)


@pytest.mark.parametrize(
    ("target", "edited"),
    [
        ("own_package.models:make", "own_package/other.py"),
        # Where results may be kept beside what was measured.
        ("model", "model/kept.json"),
    ],
)
def test_files_that_are_not_run_are_not_looked_at(
    folder: pathlib.Path, target: str, edited: str
) -> None:
    before = target_of(target, (), None)
    (folder / edited).write_text("edited")
    assert target_of(target, (), None) == before


def test_a_renamed_file_of_variables_is_another_model(folder: pathlib.Path) -> None:
    before = digest_of_saved_model(folder / "model")
    data = folder / "model" / "variables" / "data"
    data.rename(data.with_name("other"))
    assert digest_of_saved_model(folder / "model") != before


@pytest.mark.parametrize("name", ["no_such_module", "no_such_package.models", "sys"])
def test_a_module_without_a_file_is_left_to_the_worker(name: str) -> None:
    assert digest_of_module(name) == ""


def test_the_module_is_that_of_the_present_folder(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "own_module.py").write_text("pass")
    monkeypatch.syspath_prepend(str(folder))
    outer = digest_of_module("own_module")
    monkeypatch.chdir(inner)
    assert digest_of_module("own_module") != outer


def test_a_file_that_cannot_be_read_is_named(folder: pathlib.Path) -> None:
    (folder / "model" / "saved_model.pb").unlink()
    (folder / "model" / "saved_model.pb").symlink_to("/proc/self/mem")
    with pytest.raises(ConfigError, match=r"saved_model.pb cannot be read: "):
        target_of("model", (), None)
