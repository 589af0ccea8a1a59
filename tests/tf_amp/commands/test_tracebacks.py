"""What a script raises is shown as `python` shows it: with the script's own frames."""

import re
import sys

import pytest

from tests.forking import run_forked, run_forked_command
from tf_amp import uncaught

FAILING = """
def inner():
    raise {error}("its own")

inner()
"""
COMMANDS = ("run", "explain", "verify", "ranges", "report", "audit --device-profile t4")


def frames_in(text):
    return re.findall(r'File "([^"]*)", line (\d+)', text)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "failing.py").write_text(FAILING.format(error="ValueError"))
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text(FAILING.format(error="ImportError"))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_the_frames_are_those_of_the_script(folder, command):
    name, *options = command.split()
    command = ("-m", "tf_amp", name, *options, "failing.py")
    done = run_forked_command(command, cwd=folder)
    assert done.code == 1
    lines = [("failing.py", "5"), ("failing.py", "3")]
    assert frames_in(done.err) == lines, done.err
    assert "ValueError: its own" in done.err


@pytest.mark.parametrize(
    ("script", "frames"),
    [("broken.py", ["broken.py"]), ("-m pack.sub", ["pack/__init__.py"] * 2)],
)
def test_a_script_that_cannot_begin_has_no_frames_of_ours(folder, script, frames):
    command = ("-m", "tf_amp", "run", *script.split())
    done = run_forked_command(command, cwd=folder)
    assert done.code == 1
    found = [name.removeprefix(f"{folder}/") for name, _ in frames_in(done.err)]
    assert found == frames, done.err


def test_a_scripts_own_hook_gets_what_python_would_give_it(folder):
    (folder / "hooked.py").write_text(
        "import sys, traceback\n"
        "sys.excepthook = lambda kind, error, frames: print(\n"
        "    *(each.name for each in traceback.extract_tb(frames)))\n"
        "1 / 0\n"
    )
    done = run_forked_command(("-m", "tf_amp", "hooked.py"), cwd=folder)
    assert done.out == "<module>\n", done.err


def test_a_wrong_variable_ends_a_program_with_one_line():
    program = """
from tf_amp.runtime import autostart
for attempt in range(3):
    try:
        autostart.start(None)
    except ValueError as error:
        print(error)
autostart.start(None)
"""
    env = {"TF_ENABLE_AUTO_MIXED_PRECISION": "1", "TF_AMP_DTYPE": "float17"}
    done = run_forked(program, env=env)
    assert done.code == 1 and len(set(done.out.splitlines())) == 1
    assert done.err == f"tf-amp: {done.out.splitlines()[0]}\n"
    assert done.err.startswith("tf-amp: TF_AMP_DTYPE: received 'float17'")


def test_other_errors_go_to_the_hook_that_was_there(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: seen.append(given))
    ours, other = ValueError(), KeyError()
    uncaught.show_from(ours, None)
    sys.excepthook(KeyError, other, None)
    sys.excepthook(ValueError, ours, other.__traceback__)
    assert seen == [(KeyError, other, None), (ValueError, ours, None)]
