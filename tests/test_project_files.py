"""The files about the project name what exists."""

from __future__ import annotations

import re

import keras_callbacks
import tf_amp
from tests.processes import ROOT
from tf_amp.commands import cli

# In the changelog, what is called without `tf_amp.` in front.
CALLS = re.compile(r"`(?:tf_amp\.)?([a-z_]{7,})(?:\(\))?`")


def test_all_files_have_the_version() -> None:
    version = tf_amp.__version__
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()


def test_names_and_commands_in_them_are_there() -> None:
    for name in ("CHANGELOG.md", "SECURITY.md"):
        text = " ".join((ROOT / name).read_text().split())
        for called in CALLS.findall(text):
            places = (tf_amp, keras_callbacks)
            is_known = any(hasattr(place, called) for place in places)
            assert is_known or called in ("exclude", "evaluate", "predict"), called
        commands = re.findall(r"tf-amp ([a-z]+)", text)
        assert commands and {*commands} <= {*cli._commands()}


def test_the_tests_that_take_long_are_files_of_which_each_room_has_others() -> None:
    slow = {ROOT / name for name in (ROOT / "tests/slow_files.txt").read_text().split()}
    rooms = {path.parent for path in slow}
    assert all(path.is_file() for path in slow)
    assert all({*room.glob("test_*.py")} - slow for room in rooms)
