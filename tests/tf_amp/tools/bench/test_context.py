"""Which revision of a repository something was measured at."""

from __future__ import annotations

import pathlib

import pytest

from tests.processes import run
from tf_amp.tools.bench.record import revision_of

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(folder: pathlib.Path, *arguments: str) -> str:
    return "\n".join(run(["git", "-C", str(folder), *AUTHOR, *arguments]).lines())


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("code.py", "kept/results.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("one")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_a_revision_has_a_plus_where_files_differ(folder: pathlib.Path) -> None:
    revision = git(folder, "rev-parse", "--short=12", "HEAD")
    assert revision_of(folder) == revision_of(folder / "kept") == revision
    (folder / "code.py").write_text("two")
    assert revision_of(folder) == revision_of(folder / "kept") == f"{revision}+"


def test_files_that_may_differ_are_left_out(folder: pathlib.Path) -> None:
    revision = revision_of(folder)
    (folder / "kept" / "results.json").write_text("two")
    assert revision_of(folder, ("kept",)) == revision
    assert revision_of(folder) == f"{revision}+"
    (folder / "code.py").write_text("two")
    assert revision_of(folder, ("kept",)) == f"{revision}+"


def test_a_folder_outside_of_repositories_has_no_revision(
    tmp_path: pathlib.Path,
) -> None:
    assert revision_of(tmp_path) == revision_of(tmp_path / "none") == ""
