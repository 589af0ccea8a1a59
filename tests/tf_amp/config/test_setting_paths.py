"""Paths in settings: they stay what they were where they were given."""

from __future__ import annotations

import os
import pathlib

import pytest

from grappler_pass.costs import DeviceProfile
from tests.fresh_process import output_of
from tf_amp.config.amp_config import (
    LOG,
    PLACES,
    RANGES,
    REWRITE_SWITCH,
    SWITCH,
    AmpConfig,
)
from tf_amp.runtime import autostart
from tf_amp.tools import running_scripts


def paths_in(config: AmpConfig) -> list[str]:
    found = (config.device_profile, config.log_dir, config.cache_dir, config.ranges)
    return [str(path) for path in found]


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    config = AmpConfig.from_env({name: f"~/{name}" for name in PLACES})
    assert paths_in(config) == [f"/home/someone/{name}" for name in PLACES]


@pytest.mark.parametrize("text", ["here.json", "below/here", "../here", "./here"])
def test_a_relative_path_is_of_the_folder_that_it_was_read_in(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config = AmpConfig.from_env(dict.fromkeys(PLACES, text))
    assert paths_in(config) == [str(tmp_path / text)] * 4


@pytest.mark.parametrize("name", DeviceProfile.names())
def test_the_name_of_a_shipped_profile_is_no_path(name: str) -> None:
    assert AmpConfig.from_env({"TF_AMP_DEVICE_PROFILE": name}).device_profile == name


def test_a_command_tells_whole_paths_to_the_script_and_its_children(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autostart, "is_installed", lambda: True)
    monkeypatch.chdir(tmp_path)
    said = dict.fromkeys(PLACES, "here.json") | {LOG: "elsewhere", RANGES: " "}
    for name in (SWITCH, REWRITE_SWITCH, *PLACES):
        monkeypatch.setenv(name, said.get(name, ""))
    running_scripts.switch_on({LOG: "here.json"})
    found = [os.environ[name] for name in PLACES]
    assert found == [*[str(tmp_path / "here.json")] * 3, " "]


def test_a_program_may_change_to_another_folder(tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    lines = output_of(
        f"""
        import os, pathlib
        from grappler_pass.costs import DeviceProfile

        os.chdir({str(tmp_path)!r})
        DeviceProfile.load("cpu-generic").save(pathlib.Path("mine.json"))
        tf_amp.enable(opt_level="O2", device_profile="mine.json", log_dir="graphs")
        os.chdir("elsewhere")
        print(dtype_of(product()), os.listdir(), sorted(os.listdir("..")))
        """
    )
    assert lines == ["bfloat16 [] ['elsewhere', 'graphs', 'mine.json']"]


def test_what_a_command_writes_after_a_script_is_where_the_command_was_given(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "leaves.py").write_text("import os; os.chdir('/')")
    lines = output_of(
        f"""
        import os
        from tf_amp.tools import running_scripts

        os.chdir({str(tmp_path)!r})
        running_scripts.run_limited("leaves.py", [], None)
        print(os.getcwd())
        """
    )
    assert lines == [str(tmp_path)]
