"""A file that cannot be written is refused before anything is run or measured."""

from __future__ import annotations

import os

import pytest

from tf_amp.commands import cli
from tf_amp.errors import ConfigError
from tf_amp.report.files import check_writable

SCRIPT = "import pathlib; pathlib.Path('was_run').touch()"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("ranges script.py", "--out"),
        ("verify script.py --bisect", "--write"),
        ("calibrate --seconds 30", "--out"),
    ],
)
@pytest.mark.parametrize("path", ["script.py/in_a_file", "folder"])
def test_an_output_is_tried_first(command, option, path, tmp_path, monkeypatch, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    assert cli.main([*command.split(), option, path]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"tf-amp: {option}: {path} cannot be written: ")
    assert said.count("\n") == 1
    assert {each.name for each in tmp_path.iterdir()} == {"folder", "script.py"}


def test_a_pipe_can_be_written_and_a_link_where_it_leads(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "absent" / "file")
    check_writable("--out", tmp_path / "pipe")
    with pytest.raises(ConfigError, match="--out"):
        check_writable("--out", tmp_path / "link")
