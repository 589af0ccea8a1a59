"""Files about the project name what exists; campaigns and tests keep to what they say.

Tests depend neither on the settings of whoever runs them nor on other tests.
"""

from __future__ import annotations

import functools
import itertools
import re
import symtable

import pytest
from absl import logging

import keras_callbacks
import tf_amp
from tests import campaign
from tests.other_versions import FAILURES
from tests.processes import ROOT, run_python
from tf_amp.commands import cli
from tf_amp.config.amp_config import OPT_LEVEL, SWITCH
from tf_amp.rewriting import host

# In the changelog, what is called without `tf_amp.` in front.
CALLS = re.compile(r"`(?:tf_amp\.)?([a-z_]{7,})(?:\(\))?`")
# Of what tests and their programs in text import of this repository, module and names.
IMPORTS = re.compile(
    r"^ *from ((?:tf_amp|grappler_pass|keras_callbacks|tests|benchmarks|evidence)\b"
    r"[\w.]*) import (\([^)]*\)|[^(\n]*)",
    re.MULTILINE,
)


def test_all_files_have_the_version() -> None:
    version = tf_amp.__version__
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()


def test_the_guide_for_contributors_is_a_page_whose_files_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(text.splitlines()) <= 90
    links = re.findall(r"\]\(([^)#]+)", text)
    assert links and all((ROOT / link).exists() for link in links)


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


@functools.cache
def names_in(module: str) -> set[str]:
    """Return what can be imported from a module; nothing if it is not there."""
    path = ROOT.joinpath(*module.split("."))
    files = [f for f in (path / "__init__.py", path.with_suffix(".py")) if f.is_file()]
    names = {each.stem for each in path.glob("*")}
    for file in files:
        symbols = symtable.symtable(file.read_text(), str(file), "exec").get_symbols()
        names |= {s.get_name() for s in symbols if s.is_assigned() or s.is_imported()}
    return names


def missing_in(text: str) -> set[str]:
    """Return what a text imports of this repository that is not there."""
    return {
        f"{module}.{name}"
        for module, listed in IMPORTS.findall(text)
        for name in re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", listed))
        if name not in names_in(module)
    }


def test_what_programs_in_text_import_is_there() -> None:
    known = "from tests.processes import (\n    ROOT,  # the folder\n    run_python,\n)"
    assert missing_in(known) == set()
    unknown = (
        "    from tests.processes import ROOT, gone as there\nfrom tests.no import a"
    )
    assert missing_in(unknown) == {"tests.processes.gone", "tests.no.a"}
    files = [f for end in ("txt", "py") for f in (ROOT / "tests").rglob(f"*.{end}")]
    missing = {name for file in files for name in missing_in(file.read_text())}
    assert missing <= {
        "tf_amp.runtime.autostart.started"
    }  # Of a package made up there.


def test_a_result_takes_the_place_of_the_last_one_of_its_command() -> None:
    text = "| command | result |\n"
    for cells in (("`a`", "1"), ("`a 9`", "2"), ("`a`", "3")):
        text = campaign.with_row(text, cells)
    assert text == "| command | result |\n| `a` | 3 |\n| `a 9` | 2 |\n"


def test_each_campaign_of_make_test_long_has_its_row() -> None:
    lines = re.findall(
        r"python -m (tests\S+) (.*--note)", (ROOT / "Makefile").read_text()
    )
    assert lines
    text = campaign.FILE.read_text()
    for module, arguments in lines:
        begin = f"| {campaign.command_of(module, arguments.split())} | 0-"
        assert begin in text, f"make test-long was never run with {begin}"


def test_the_settings_of_whoever_runs_the_tests_are_unset() -> None:
    program = """
        import os
        import tests.conftest
        print(*sorted(n for n in os.environ if "TF_AMP" in n or "AUTO_MIXED" in n))
    """
    done = run_python(program, env={OPT_LEVEL: "O0", SWITCH: "1"})
    assert done.lines() == ["TF_AMP_CACHE TF_AMP_TUNE"]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_plans_and_what_is_told_once_are_forgotten(
    turn: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert not host.current().plans
    host.current().plans.append(turn)
    assert host.current().is_news("said once")
    logging.log_first_n(logging.WARNING, "only once", 1)
    assert "only once" in caplog.text


def test_what_is_expected_of_other_releases_names_tests() -> None:
    for reasons in FAILURES.values():
        for name in itertools.chain.from_iterable(reasons.values()):
            path, _, test = name.partition("::")
            assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text(), name
